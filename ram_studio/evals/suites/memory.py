"""Suite `memory`: find and follow facts in long texts, with lengths in the model's own tokens.

Four kinds at every chosen length:
- `needle`: one number in filler text; `needles`: four numbers with one name, all requested;
- `variables`: a chain of assignments among other chains; the question is for every variable with
  the value;
- `hops`: three facts lead from a person to a color, among the same facts about other people.

An answer is right when its first `answer_chars` characters (enough for a sentence, not for reciting
the text) contain every expected string, in any case, and no wrong one, as listing every number of
the text would. The prompt, with space for the answer and a chat template, is as long as whole
sentences allow, and never longer than the length.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ram_studio.errors import EvalSettingsError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.suite import Suite, SuiteSettings, balance_questions

PER_CELL = 4
MAX_QUESTIONS = 64
MAX_LENGTH = 1_048_576
MAX_NEW_TOKENS = 64
TEMPLATE_TOKENS = 48

# fmt: off
_PEOPLE = (
    "Abel", "Berta", "Carlo", "Dunja", "Emre", "Frida", "Goran", "Hilde", "Ines", "Jonas", "Katja",
    "Luis", "Marta", "Nils", "Olga", "Pablo", "Rosa", "Selim", "Tilda", "Ugo", "Vera", "Wanda",
)
_ADJECTIVES = (
    "quiet", "old", "narrow", "bright", "dusty", "heavy", "early", "distant", "wooden", "cold",
    "green", "patient", "hollow", "slow", "round", "pale", "broken", "warm", "empty", "small",
)
_NOUNS = (
    "bridge", "garden", "lantern", "letter", "harbour", "kettle", "orchard", "ladder", "cellar",
    "market", "meadow", "staircase", "carpet", "chimney", "ferry", "basket", "mirror", "fountain",
)
_VERBS = (
    "painted", "visited", "described", "repaired", "sold", "remembered", "measured", "crossed",
    "cleaned", "drew", "photographed", "forgot", "rented", "watched", "found", "admired",
)
_TIMES = (
    "on a rainy day", "in the spring", "before noon", "last winter", "at dusk", "after the fair",
    "one evening", "during the holidays", "years ago", "with some friends", "without a word",
)
_COLORS = (
    "amber", "crimson", "ivory", "teal", "violet", "olive", "maroon", "turquoise", "lilac", "beige",
)
# fmt: on


@dataclass(frozen=True)
class Puzzle:
    """Sentences to hide in the filler text, in this order, and a question about them.

    wanted: the strings of a right answer. wrong: those of the other facts.
    """

    facts: tuple[str, ...]
    question: str
    wanted: tuple[str, ...]
    wrong: tuple[str, ...] = ()


def _needle(rng: random.Random) -> Puzzle:
    name = f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    number = str(rng.randint(10**6, 10**7 - 1))
    fact = f"The secret number of the {name} is {number}."
    return Puzzle((fact,), f"What is the secret number of the {name}?", (number,))


def _needles(rng: random.Random) -> Puzzle:
    name, other = rng.sample([f"{a} {n}" for a in _ADJECTIVES for n in _NOUNS], 2)
    numbers = [str(number) for number in rng.sample(range(10**6, 10**7), 8)]
    facts = [f"One of the secret numbers of the {name} is {number}." for number in numbers[:4]]
    facts += [f"One of the secret numbers of the {other} is {number}." for number in numbers[4:]]
    rng.shuffle(facts)
    question = f"What are the 4 secret numbers of the {name}?"
    return Puzzle(tuple(facts), question, tuple(numbers[:4]), tuple(numbers[4:]))


def _variables(rng: random.Random) -> Puzzle:
    # With a digit, so that no common word contains a name.
    names = rng.sample([a + b + c for a in "BDFGHKLMP" for b in "EIOU" for c in "23456789"], 12)
    values = [str(value) for value in rng.sample(range(10000, 99999), 3)]
    chains = []
    for chain, value in enumerate(values):
        members = names[4 * chain : 4 * chain + 4]
        steps = [f"Let {members[0]} = {value}."]
        steps += [f"Let {b} = {a}." for a, b in pairwise(members)]
        chains.append(steps)
    # A variable is set before it is used, so each chain keeps its order in the text.
    turns = [chain for chain in chains for _ in chain]
    rng.shuffle(turns)
    position = {id(chain): iter(chain) for chain in chains}
    facts = tuple(next(position[id(chain)]) for chain in turns)
    question = f"Which 4 variables have the value {values[0]}?"
    return Puzzle(facts, question, tuple(names[:4]), tuple(names[4:]))


def _hops(rng: random.Random) -> Puzzle:
    people = rng.sample(_PEOPLE, 6)
    places = rng.sample([f"{a} {n}" for a in _ADJECTIVES for n in _NOUNS], 3)
    colors = rng.sample(_COLORS, 3)
    facts = []
    for i in range(3):
        facts += [
            f"The best friend of {people[i]} is {people[i + 3]}.",
            f"{people[i + 3]} lives beside the {places[i]}.",
            f"The house beside the {places[i]} has a door painted {colors[i]}.",
        ]
    rng.shuffle(facts)
    question = f"What color is the door of the house of the best friend of {people[0]}?"
    return Puzzle(tuple(facts), question, (colors[0],), tuple(colors[1:]))


KINDS: dict[str, Callable[[random.Random], Puzzle]] = {
    "needle": _needle,
    "needles": _needles,
    "variables": _variables,
    "hops": _hops,
}
_INTRODUCTION = "Read the text and answer the question after it.\n\n"
_QUESTION = "\n\nQuestion: {} Answer briefly, with nothing but what is asked for."


def make(settings: SuiteSettings) -> tuple[Question, ...]:
    """Return four questions of each kind for each length, at most 64 in all.

    Raises: EvaluationError: a length that is out of range or too short for a kind.
    """
    lengths = sorted(set(settings.lengths))
    if not lengths or lengths[0] < 1 or lengths[-1] > MAX_LENGTH:
        raise EvalSettingsError(
            f"The lengths are {list(settings.lengths)}. Give one or more between 1 and "
            f"{MAX_LENGTH} tokens."
        )
    per_cell = max(1, min(PER_CELL, MAX_QUESTIONS // (len(lengths) * len(KINDS))))
    # No more are made than requested: a text of 128k tokens takes a while.
    if settings.limit is not None:
        per_cell = min(per_cell, -(-settings.limit // (len(lengths) * len(KINDS))))
    questions = [
        _question(settings, length, kind, number)
        for length in lengths
        for kind in KINDS
        for number in range(per_cell)
    ]
    return balance_questions(questions, settings.limit)


def _question(settings: SuiteSettings, length: int, kind: str, number: int) -> Question:
    rng = random.Random(f"{settings.seed}/{length}/{kind}/{number}")
    puzzle = KINDS[kind](rng)
    room = length - MAX_NEW_TOKENS - TEMPLATE_TOKENS
    prompt = _fit_prompt(puzzle, rng, room, settings.count_tokens)
    if prompt is None:
        needed = settings.count_tokens(_format_prompt(puzzle, [], rng))
        raise EvalSettingsError(
            f"A length of {length} tokens is too short for the memory suite: a question of kind "
            f"{kind!r} needs {needed + MAX_NEW_TOKENS + TEMPLATE_TOKENS} without any filler. "
            "Choose longer ones, for example 1000."
        )
    asked = _QUESTION.format(puzzle.question)
    return Question(
        id=f"{kind}-{length:07d}-{settings.seed}-{number}",
        domain="memory",
        category=f"{kind} {length}",
        prompt=prompt,
        gold=", ".join(puzzle.wanted),
        spec={
            "wanted": list(puzzle.wanted),
            "wrong": list(puzzle.wrong),
            "answer_chars": 160 + 2 * sum(map(len, puzzle.wanted)),
        },
        max_new_tokens=MAX_NEW_TOKENS,
        reading=(prompt.removeprefix(_INTRODUCTION).removesuffix(asked), asked.strip()),
    )


def _filler(rng: random.Random) -> str:
    return (
        f"{rng.choice(_PEOPLE)} {rng.choice(_VERBS)} the {rng.choice(_ADJECTIVES)} "
        f"{rng.choice(_NOUNS)} {rng.choice(_TIMES)}."
    )


def _format_prompt(puzzle: Puzzle, filler: list[str], rng: random.Random) -> str:
    """Return the prompt with the facts at random positions in the filler text, in their order."""
    positions = sorted(rng.randint(0, len(filler)) for _ in puzzle.facts)
    sentences: list[str] = []
    done = 0
    for position, fact in zip(positions, puzzle.facts, strict=True):
        sentences += [*filler[done:position], fact]
        done = position
    sentences += filler[done:]
    return _INTRODUCTION + " ".join(sentences) + _QUESTION.format(puzzle.question)


def _fit_prompt(
    puzzle: Puzzle, rng: random.Random, room: int, count_tokens: Callable[[str], int]
) -> str | None:
    """Return the longest prompt of at most `room` tokens, None when the facts alone take more."""
    # The same positions of the facts at every trial: the search below needs a monotonic length.
    seed = rng.random()
    source = random.Random(seed)

    def trial(sentences: list[str]) -> str:
        return _format_prompt(puzzle, sentences, random.Random(seed))

    if count_tokens(trial([])) > room:
        return None
    sample = [_filler(source) for _ in range(40)]
    per_sentence = max(1.0, count_tokens(" ".join(sample)) / len(sample))
    filler = sample + [_filler(source) for _ in range(int(1.3 * room / per_sentence))]
    low, high = 0, len(filler)
    guess = int(room / per_sentence)
    while low < high:
        middle = min(max(guess, low + 1), high)
        count = count_tokens(trial(filler[:middle]))
        if count <= room:
            low = middle
        else:
            high = middle - 1
        # Newton's method with the known length of a sentence needs two or three trials.
        guess = middle + int((room - count) / per_sentence)
    return trial(filler[:low])


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the beginning of the answer has every expected string and no wrong one."""
    if not text.strip():
        return Verdict(False, "empty answer")
    beginning = re.sub(r"\s+", " ", text.strip())[: question.spec["answer_chars"]].lower()
    # Thousands separators: 1,234,567 is the number 1234567.
    beginning += " " + re.sub(r"(?<=\d),(?=\d{3})", "", beginning)
    missing = [word for word in question.spec["wanted"] if word.lower() not in beginning]
    if missing:
        return Verdict(False, f"not said: {', '.join(missing)}")
    wrong = [word for word in question.spec["wrong"] if word.lower() in beginning]
    return Verdict(not wrong, f"also said: {', '.join(wrong)}" if wrong else "")


ABOUT = "facts to find in long texts, made with the models' own tokenizer"
SUITE = Suite("memory", 1, "Long-context memory", make, judge, ABOUT, has_texts=True)
