"""Every text of the sweep panel."""

from __future__ import annotations

HEADING = "Find a good setting"
LEAD = (
    "Many settings are merged in memory and answer the same questions; no model folder is written. "
    "Clearly losing ones stop early, and the winner is scored again on questions it was not chosen "
    "by."
)
METHODS = "Methods"
CHOICES = {
    "ram": "RAM",
    "ram+": "RAM+",
    "ram+s": "RAM+s",
    "task-arithmetic": "Task arithmetic",
    "ties": "TIES",
    "dare-ta": "DARE + task arithmetic",
}
PARAMETERS = {
    "r": "r, strength of the rescaling",
    "alpha": "α, cap on ρ (RAM+)",
    "epsilon": "ε, what counts as changed",
    "scale": "Scale (methods other than RAM)",
}
FROM, TO, COUNT = "From", "To", "Values"
FIXED = "What is not varied is as set in Tune."
HOW = "How"
SEARCHES = {"grid": "Every combination", "optuna": "Search (Optuna)"}
TRIALS = "Settings to try"
SUITES = "Questions"
ITEMS = "Questions per skill"
MINUTES = "At most minutes"
START = "Start"
STARTING = "Loading the base"
STOPPED = "Stopped. What is finished is kept; start again to go on from there."
AXIS = "Show against"
PICK = "Setting"
USE = "Use this setting in Tune"
USED = "{label} is now set in Tune."
USE_ELSEWHERE = "{label} has no sliders in Tune: choose this method and its setting in Merge."
CSV = "Download CSV"
COUNT_GRID = "{settings} settings, {items} questions each at most."
COUNT_SEARCH = "{settings} settings to try, {items} questions each at most."
SCORE_AXIS = "Right answers"
CHOSEN_SERIES = "Best"
HELD_SERIES = "Best, on held-out questions"
OUT_SERIES = "Clearly worse"
START_LINE = "where it started"
COLUMNS = ("Setting", "Score", "λ", "")
OUTCOMES = {
    "waiting": "waiting",
    "running": "being asked",
    "open": "in the race",
    "kept": "not told apart",
    "behind": "clearly worse",
    "dropped": "dropped",
    "same": "same merge",
    "unfinished": "not finished",
    "failed": "failed",
}
NOTE = (
    "Bars are 95 % Wilson intervals. A setting is dropped when a one-sided exact sign test against "
    "the best so far says so at a level of {level:.2g}: 5 % shared over all settings and looks."
)
