"""The texts of Check's suites, of the chat and of History; the others are in `wording`."""

from __future__ import annotations

LOADING = "Loading the first model"
KIND_LABEL = "What to ask"
KIND_DEMO = "The example's skills"
KIND_SUITES = "General suites"
SUITES_LABEL = "Suites"
SUITES = {
    "tool": "Tool use",
    "memory": "Long-context memory",
    "code": "Code",
    "math": "Mathematics",
    "instructions": "Instruction following",
    "health": "Health",
}
SUITE_NOTES = {
    "tool": "function calls, compared by name, types and values",
    "memory": "facts to find in long texts, made with the models' own tokenizer",
    "code": "programs and unit tests, run in a locked process",
    "math": "word problems with one number as the answer",
    "instructions": "constraints that can be checked, such as length and format",
    "health": "no right answers: perplexity, distance from the base, repetition, speed",
}
SUITES_NOTE = (
    "Short tests written for this program: {notes}. They show whether a skill survived, not how "
    "models rank in the world."
)
ITEMS_LABEL = "Questions for {suite}"
LENGTHS_LABEL = "Memory: prompt lengths in tokens"
CODE_OFF = "Suite code is not offered: {reason}"
NO_SUITE_CHOSEN = "No suite is chosen. Tick at least one."
NO_LENGTH_CHOSEN = "Suite memory needs a prompt length. Tick at least one."
STOPPED_KEPT = "Stopped. {count:,} answers are kept; evaluate again to go on from there."
TIME_OVER = (
    "The time for one evaluation on this public app is over. {count:,} answers are kept; evaluate "
    "again to go on from there."
)
FINISHED = "Done: {asked:,} questions asked now."
REUSED = "{reused:,} answers were there already and were reused."

HEAT_LEGEND = (
    "{n}. Small numbers: difference from {base} in points, 95 % Wilson interval, questions. "
    '<span class="key better">▲ better</span> or <span class="key worse">▼ worse</span> than '
    "{base} beyond chance (exact McNemar test, Holm-adjusted for all {made} comparisons made "
    "here); ~ within noise, tinted lightly. Bold underline: best of the column."
)
HEAT_N = "{n} questions per column"
HEAT_N_RANGE = "{low} to {high} questions per column"
NO_BASE = "The base was not evaluated, so there is nothing to compare with."
AGAINST = {
    "better": "better",
    "worse": "worse",
    "no difference shown": "no difference beyond chance",
}
SAME_ANSWERS = "exactly as good"
NEED = "you would need about {n} questions to tell these apart"
ALL_PAIRS = "All {n} paired comparisons"
PAIR_COLUMNS = (
    "Model",
    "against",
    "on",
    "gained",
    "lost",
    "equal",
    "adjusted p",
    "",
    "to tell apart",
)
CATEGORIES = "By kind of question"
UNANSWERED = "{model}: {n} questions got no reply and count as wrong; evaluate again to ask them."
TOO_LONG = (
    "{model}: {n} of {of} questions do not fit its context with their answers; they were not asked "
    "and count as wrong."
)
HEALTH_HEADING = "Health"
HEALTH_NAMES = {
    "perplexity": "Perplexity",
    "bits_per_byte": "Bits per byte",
    "kl_to_base": "KL to the base (nats/token)",
    "nonfinite_logits": "Logits not finite",
    "ended": "Answers that end",
    "repetition": "Repetition",
    "tokens_per_second": "Tokens/s",
    "text_tokens": "Tokens of text",
}
HEALTH_SOUND = "Nothing is plainly wrong with any of these models."

FILTERS = {
    "all": "All questions",
    "differ": "Models disagree",
    "base-lost": "Base right, a merge wrong",
    "base-won": "Base wrong, a merge right",
    "merge-lost": "A merge is wrong, a specialist right",
    "merge-won": "A merge is right, all agents wrong",
}
PREVIOUS, NEXT = "Previous", "Next"
PROMPT = "Question"
GOLD = "Right answer"
NOTHING_SAID = "(nothing)"
WHOLE_ANSWER = "Whole answer, {n} characters"

CHAT_HEADING = "Ask them yourself"
CHAT_LEAD = (
    "One question to the models ticked above, one after the other, always the most likely word. A "
    "model's own chat format is used where it has one; others continue your text."
)
CHAT_QUESTION = "Question"
CHAT_PLACEHOLDER = "Write anything, or take an example prompt"
CHAT_EXAMPLES = "Example prompts"
CHAT_TOKENS = "At most so many tokens"
CHAT_ASK = "Ask"
CHAT_STOP = "Stop"
CHAT_USE_TEMPLATE = "Use the models' own chat format"
CHAT_EMPTY = "There is no question yet. Write one, or take an example prompt."
CHAT_WAITING = "waiting"
CHAT_LOADING = "loading"
CHAT_READING = "reading the question"
CHAT_WRITING = "writing"
CHAT_STOPPED = "Stopped here."
CHAT_SKIPPED = "Not asked: stopped before its turn."
CHAT_ENDED = "Ended by itself."
CHAT_NOTHING = "It said nothing: its first token ends the answer."
CHAT_CUT = "Cut off after {n} tokens, the most allowed."
CHAT_TOO_LONG = "Not asked: {note}. Shorten the question."
CHAT_REFUSED = "Not asked: {note}."
CHAT_REPEATS = "It repeats itself."
CHAT_GARBAGE = "Mostly unreadable characters: the model or its tokenizer is broken."
CHAT_TEMPLATE = "chat format"
CHAT_PLAIN = "continues the text"
CHAT_TOO_MUCH = "The question has {n} characters; at most {most} are taken here."

HISTORY = "History"
HISTORY_HEADING = "History"
HISTORY_LEAD = "What was merged and checked before. Choose two or more to see them side by side."
HISTORY_PUBLIC = "Only your own, and only until this visit expires."
HISTORY_PRIVATE = (
    "Answers are kept in your user folder; ram-studio history on the command line shows the same."
)
HISTORY_EMPTY = "Nothing was merged or checked yet. Both come to stand here by themselves."
HISTORY_COLUMNS = ("", "Model", "When (UTC)", "Settings", "Checked", "")
HISTORY_COMPARE = "Compare"
HISTORY_OPEN = "Read the answers in Check"
HISTORY_NOTHING = "Nothing is chosen. Tick one or more rows."
HISTORY_NO_CHECK = "The chosen rows have no check in common, so only settings are compared."
HISTORY_SAME = "{names} have equal weights: they are one row of the scores."
HISTORY_UNPAIRED = "Suite {suite} is not compared: {reason}."
HISTORY_TUNE = "Settings in Tune"
HISTORY_SETTINGS = "Settings"
AS_BASE = "as the base"
HISTORY_SCORES = "Scores on the same questions"
HISTORY_REFERENCE = "Compared with"
EXPORT_CSV, EXPORT_JSON, EXPORT_HTML = "Download CSV", "Download JSON", "Download HTML"
