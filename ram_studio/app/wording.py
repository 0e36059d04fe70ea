"""Texts that panels of several rooms show; all others stand where they are used."""

from __future__ import annotations

METHOD_NAMES = {
    "ram": "RAM",
    "ram+": "RAM+",
    "ram+s": "RAM+s",
    "ram+m": "RAM+m",
    "task-arithmetic": "Task arithmetic (plain averaging and sums)",
    "ties": "TIES",
    "dare-ta": "DARE + task arithmetic",
    "dare-ties": "DARE + TIES",
    "fisher": "Fisher averaging",
    "wudi": "WUDI",
}

STOP = "Stop"
STOPPED = "Stopped."

# ------------------------------------------------------------------------------------ Check

CHECK_HEADING = "Check"
CHECK_LEAD = (
    "The base, each agent and your merges answer the same held-out prompts; strict checkers "
    "count the right answers."
)
EVALUATE = "Evaluate"
LIMIT_LABEL = "Prompts per skill"
MODELS_LABEL = "Models"
NO_MODEL_CHOSEN = "No model is chosen. Tick at least one."
BROWSER_HEADING = "Read the answers"
DOMAIN_LABEL = "Skill"
FILTER_LABEL = "Which prompts"
ITEM_LABEL = "Prompt"
NO_ITEMS = "No prompt fits this choice."
NOTHING_CHECKED = "Not evaluated yet. It takes some seconds for each model."
NO_MERGE_YET = "You have no merge yet, so this compares the base and the agents. Make one in Merge."
SUITE_ONLY_EXAMPLE = (
    "The built-in suite has the example's small tasks (code, tool, memory, follow). Your own "
    "models can be run on it, but it will not show what they were trained for."
)

COMPARE_HEADING = "Compare methods side by side"
COMPARE_LEAD = (
    "Each method merges the same agents in memory and answers the same prompts; no model folder "
    "is written. The table says where a difference is no more than chance."
)
COMPARE_WHAT = "What to compare"
OWN_COMPARISON = "My choice of methods"
COMPARE_METHODS = "Methods"
COMPARE_CHOICES = {
    "task-arithmetic-mean": "Task arithmetic, mean (1/N)",
    "task-arithmetic-sum": "Task arithmetic, plain sum",
    "ties": "TIES",
    "dare-ta": "DARE + task arithmetic",
    "dare-ties": "DARE + TIES",
    "fisher": "Fisher (slow)",
    "wudi": "WUDI (slow)",
    "ram": "RAM",
    "ram+": "RAM+",
    "ram+s": "RAM+s",
    "ram+m": "RAM+m",
}
COMPARE_OWN_NOTE = "RAM rows use your ε, r and α from Tune; the others their defaults."
COMPARE = "Compare"
COMPARE_STARTING = "Preparing the models"
COMPARE_CSV = "Download CSV"
COMPARE_REPORT = "Download report (HTML)"
COMPARE_SVG = "Download figure (SVG)"
COMPARE_SUMMARY = "Against {reference}, on all skill prompts together"
COMPARE_NOTE = (
    "{n} held-out prompts per skill (seed {seed}), greedy answers, strict checkers. Small numbers: "
    "95 % Wilson interval. Underlined: highest of the column, which may still be chance. Last "
    "column: prompts gained and lost against the reference, exact McNemar test with Holm's "
    "correction for all rows; within noise: p of 0.05 or more. Average: of the skills."
)
COMPARE_LAMBDAS = "λ asked and stored, by agent"
COMPARE_LAMBDAS_NOTE = (
    "Factor on the changes that an agent made alone: what the method asked for, and what is left "
    "of it after rounding to the stored format."
)
COMPARE_FIGURE = "Time to merge against average score"
COMPARE_FIGURE_NOTE = (
    "Numbers are the table's rows, orange is the reference; left and up is better. The first use "
    "of a kind of merge after the app's start includes preparing its code, and the first that "
    "needs counts the counting."
)
COMPARE_AXES = ("Seconds to merge (logarithmic)",)
NONE_OF_THEM = "none"
NO_METHOD_CHOSEN = "No method is chosen. Tick at least one."
REPORT_ABOUT = "RAM Studio {version} · suite {suite} · {n} prompts per skill · seed {seed}"
SETTING_SIGNS = {"epsilon": "ε", "alpha": "α"}

BUSY = "Another job of this session is running. Stop it, or wait until it is done."
NEED_LOAD = "Nothing is loaded yet. Go back to Load and use the example or your own models."
