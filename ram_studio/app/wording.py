"""Every text of the app, in one place. Plain words; Greek letters only as labels of settings."""

from __future__ import annotations

TITLE = "RAM Studio"
TAGLINE = "Merge agents trained by reinforcement learning, and see what each one brings."

THEME = "Switch between light and dark"

STEPS = {
    "load": ("1", "Load"),
    "look": ("2", "Look"),
    "tune": ("3", "Tune"),
    "merge": ("4", "Merge"),
    "check": ("5", "Check"),
}

NEXT = {
    "look": "Next: look at the changes",
    "tune": "Next: tune",
    "merge": "Next: merge",
    "check": "Next: check the result",
}

# ------------------------------------------------------------------------------------ Load

LOAD_HEADING = "Several specialists in, one model out"
LOAD_LEAD = (
    "RAM Studio counts which weights each RL-trained agent changed, keeps what only one agent "
    "changed, averages what several changed, and shows you what that does before and after."
)
HERO_FIGURE = (
    "Three agents with the weights each changed; in the merged model those that only one agent "
    "changed keep its colour, those that several changed are averaged."
)
HERO_KEYS = (
    ("line", "unchanged"),
    ("agent-2", "changed by one agent: kept in full"),
    ("overlap-2", "changed by several: averaged"),
)
EXAMPLE_TITLE = "Three small agents"
USE_EXAMPLE = "Use the example"
USE_EXAMPLE_NOTE = (
    "A tiny base model with a coding, a tool and a memory agent, really trained by RL. "
    "Ready at once, nothing to download."
)
DENSE_TITLE = "A lesson: when RAM cannot help"
USE_DENSE = "Use the dense agents"
USE_DENSE_NOTE = (
    "The same skills, but these agents changed nearly the same weights. Little is unique, so there "
    "is little for RAM to protect. See it, merge it, compare it with the plain sum."
)
EXAMPLE_HONESTY = (
    "The example is a toy. Its base learned from a deliberately noisy corpus: hard prompts are "
    "often answered wrongly there, so that reinforcement learning has something to repair."
)
OWN_MODELS = "Your own models"
OWN_LEAD = (
    "One base and the agents trained from it: a folder with safetensors files, or a Hub id such as "
    "`owner/name`."
)
OWN_LEAD_SPACE = (
    "One base and the agents trained from it, each a public Hub id such as `owner/name`, "
    "with safetensors files."
)
PRESET_LABEL = "Fill in a model family from the paper"
BASE_LABEL = "Base model"
SOURCE_LABEL = "Folder or Hub id"
SOURCE_LABEL_SPACE = "Hub id"
NAME_LABEL = "Name"
REMOVE_AGENT = "Remove"
ADD_AGENT = "+ Add an agent"
STRICTNESS = "When tensors do not match"
MISSING_LABEL = "A tensor is missing in an agent"
EXTRA_LABEL = "An agent has an extra tensor"
ROWS_LABEL = "Vocabulary sizes differ"
MISSING_CHOICES = [("Refuse", "error"), ("Keep the base's", "keep-base")]
EXTRA_CHOICES = [("Refuse", "error"), ("Leave it out", "ignore")]
ROWS_CHOICES = [("Refuse", "exact"), ("Merge the common rows", "common")]
CHECK_FIT = "Check that they fit"
ANALYZE = "Analyze"
STOP = "Stop"
NO_BASE = "No base model is given. Enter the folder or Hub id of the model the agents started from."
NO_AGENTS = "No agent is given. Enter the folder or Hub id of at least one agent."
NAME_TWICE = "Two agents are called {name}. Give each agent its own name."
BAD_HUB_ID = (
    "{who} is {source!r}, which is not a Hub id. Enter it as owner/name or owner/name@revision; "
    "this public app opens nothing else."
)
TOO_LARGE = (
    "{who} ({source}) weighs {size}; this public app takes at most {limit} for each model. "
    "Run RAM Studio on your own machine for larger ones."
)

# ------------------------------------------------------------------------------------ Look

LOOK_HEADING = "What each agent changed"
LOOK_LEAD = (
    "A weight counts as changed when it moved by more than ε = {epsilon}. "
    "Change ε in Tune; these figures follow."
)
CHARTS = {
    "density": (
        "How much each agent changed",
        "Share of all weights that moved. RL often moves very few, and how few differs by agent.",
    ),
    "composition": (
        "Alone or together",
        "Of the weights an agent changed: the share it changed alone, and with others. RAM keeps "
        "the first in full and averages the rest.",
    ),
    "patterns": (
        "Who meets whom",
        "Weights changed by exactly these agents and no others.",
    ),
    "magnitude": (
        "How far weights moved",
        "Weights by size of their change. What lies left of the ε line counts as unchanged.",
    ),
    "layer_density": (
        "Where in the model: density by layer",
        "Share of each layer's weights that each agent changed.",
    ),
    "layer_overlap": (
        "Where they meet: overlap by layer",
        "Of each layer's changed weights, how many agents changed them.",
    ),
    "heatmap": (
        "Layer by module",
        "Share of weights changed in each kind of module; brighter means more. One scale for all "
        "agents.",
    ),
}
NO_PATTERNS = "With more than six agents the single patterns are not counted."

# ------------------------------------------------------------------------------------ Tune

TUNE_HEADING = "Tune"
EPSILON_LABEL = "ε · what counts as changed"
R_LABEL = "r · how much to rescale"
ALPHA_LABEL = "α · cap on ρ"
RULE_LABEL = "Rule for unique changes"
RULES = [
    ("RAM: keep them as they are", "ram"),
    ("RAM+: rescale, capped", "ram+"),
    ("RAM+s: rescale, softly", "ram+s"),
    ("RAM+m: capped, by size", "ram+m"),
]
RESET = "Reset"
COPY_LINK = "Copy link"

LIVE = {
    "shared": "shared",
    "unique": "unique",
    "card_density": "changed {share}",
    "card_capped": "capped by α",
    "card_plain": "no rescaling",
    "card_nothing": "changed nothing",
    "card_no_sizes": "analyze again: this sketch has no sizes by region",
    "card_kept": "stored in {dtype}: λ {kept}",
    "card_kept_unknown": "what {dtype} keeps: known after the merge",
    "by_size": "by size of change: {rho}",
    "by_count": "by count: {rho}",
    "by_size_of": "sum |τ| shared ÷ sum |τ| unique",
    "card_split": "{own} alone · {rest} shared",
    "card_stored": "rounded to the base's format: changed {share}, ρ {rho}",
    "card_nothing_legend": "no weight moved by more than ε",
    "bars_aria": "Share of weights each agent changed, in {groups} groups; details on pointing",
    "bars_hint": "Point at a group to read its numbers, or use the arrow keys.",
    "layer": "Layer {n}",
    "labels": {"embedding": "emb", "head": "head", "other": "other"},
    "one_agent": "one agent",
    "some_agents": "{n} agents",
    "all_agents": "all {n}",
    "changed": "{share} of all weights ({n}) changed by anyone",
    "settings": "ε {epsilon} · r {r} · α {alpha}",
    "dtypes": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"},
    "round_asked": "asked",
    "round_stored": "Stored as",
    "round_nearest": "{dtype}, to nearest",
    "round_stochastic": "{dtype}, stochastic",
    # As rounding_meter.rounding_advice words it.
    "round_lost": (
        "Rounding to nearest in {dtype} takes part of the rescaling: {agents}. "
        "Stochastic rounding or float32 keeps it."
    ),
    "round_lost_one": "{name} {kept} instead of {asked}",
    "round_fine": "Stored in {dtype} to nearest, every agent keeps at least nine tenths of it.",
    "round_plain": "Nothing is rescaled, so rounding in {dtype} takes nothing away.",
    "round_absent": (
        "This analysis has no statistics of rounding. Analyze the models again to see what is kept."
    ),
    "round_layers_aria": "Share of the intended change that {dtype} keeps, by layer and agent",
    "agree_line": (
        "{conflict} of the shared weights are pulled in opposite directions; in their mean {mass} "
        "of the shared change cancels out."
    ),
    "agree_nothing": "At this ε no weight is shared, so nothing can cancel out.",
    "agree_absent": (
        "This analysis has no statistics of signs and sizes. Analyze the models again to see them."
    ),
    "agree_opposite": "opposite signs",
    "agree_layers_aria": "Conflict in the shared weights, by layer",
    "scope_nobody": "changed by nobody",
    "scope_by": "changed by",
    "scope_below": "moved too little to count",
    "scope_grid": "Weights of {tensor}; arrow keys move, the panel beside shows the one pointed at",
    "scope_base": "base",
    "scope_columns": ["", "value", "change"],
    "scope_methods": ["Method", "Stored", "Moved by"],
    "scope_stored": "stored as {stored} ({dtype}{drawn})",
    "scope_drawn": ", drawn at random",
    "scope_moved": "asked {asked}, kept {kept}",
    "scope_steps": (
        "Moved by: in steps of the stored format, from the base's value to its next number. "
        "Asked is before rounding, kept after."
    ),
    "scope_hidden": "Not shown",
    "scope_legend": ["unchanged", "one agent", "{n} agents"],
    "copied": "Link copied. It opens this example with these settings.",
    "copied_own": "Link copied. It carries the settings; your models stay on this machine.",
    "in_address_bar": "The link is in the address bar: copy it from there.",
}
BARS_HEADING = "Weights each agent changed"
BY_LAYER = "By layer"
BY_MODULE = "By module"
OVERLAP_HEADING = "Who shares the changed weights"
DIALECTS_HEADING = "The same counts in other implementations"
DIALECTS_NOTE = (
    "Each at its own defaults. Paper: r 0.1, α 2, ρ of the whole model. Authors' script: "
    "1 + 0.2 · min(1, ρ). mergekit (ramplus_tl): r 0.1, α 0.2, ρ tensor by tensor, so λ stays at "
    "1.02 or below (mean shown)."
)
DIALECTS_COLUMNS = ("Agent", "Your λ", "Paper", "Authors' script", "mergekit")


# ------------------------------------------------------------------------------------ Merge

MERGE_HEADING = "Merge"
MERGE_LEAD = "One streaming pass over the files writes a finished model folder, or nothing."
FROM_TUNE = "From Tune:"
CHANGE = "Change"
DTYPES = [
    ("As the base", ""),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float32 (twice the size)", "float32"),
]
NAME_PLACEHOLDER = "as the method, if left empty"
DOWNLOAD = "Download as zip"
RECIPE_LABEL = "YAML"
RECIPE = "Recipe (repeat this merge from the command line)"
METHOD_LABEL = "Method"
METHOD_NOTES = {
    "ram": "Unique changes in full, shared ones averaged.",
    "ram+": "RAM, with unique changes scaled up by λ = 1 + r · min(ρ, α).",
    "ram+s": "RAM, with unique changes scaled up by λ = 1 + r · ρ ÷ (1 + ρ).",
    "ram+m": "RAM+ with ρ of sizes of change instead of counts.",
    "task-arithmetic": "Base plus scale × the sum of all changes. 1/N is plain averaging.",
    "ties": "Keeps each agent's largest changes, elects one sign, averages those that agree.",
    "dare-ta": "Drops changes at random, scales up the rest, then adds them.",
    "dare-ties": "Drops changes at random, scales up the rest, then resolves signs.",
    "fisher": "Averages weighted by how much each agent's outputs depend on a weight.",
    "wudi": "Finds per-layer changes that disturb each agent's own ones least. Needs no data, but "
    "whole matrices in memory and many times longer than the others.",
}
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
LOAD_RECIPE = "Load a recipe"
RECIPE_LOADED = (
    "{name} is in the form, for the agents loaded here; the folders or Hub ids it names are not "
    "opened."
)
RECIPE_OTHER_AGENTS = (
    "{name} merges {theirs}; loaded here: {ours}. Load agents of those names first."
)
RECIPE_OTHER_METHOD = (
    "{name} uses the method {method}, which needs files of its own; run it with the command line."
)
RECIPE_NEAREST = "{setting} {asked} is not on the slider; the nearest, {used}, is set."
RECIPE_LEFT_OUT = "Not taken over: {fields} (they come from Load)."
SETTINGS = {
    "scale": "Scale · factor on the changes",
    "density": "Density · share of changes kept",
    "drop_rate": "Drop rate · share of changes dropped",
    "scope": "Counted in",
    "shared": "Shared changes",
    "solver": "Solver",
    "iterations": "Iterations",
    "learning_rate": "Learning rate",
    "others": "Other tensors",
}
SETTING_CHOICES = {
    "scope": {
        "global": "Whole model",
        "layer": "Layer by layer",
        "tensor": "Tensor by tensor",
    },
    "shared": {"mean": "Mean (paper)", "ties": "Mean of the agreeing sign"},
    "solver": {"adam": "Adam (as published)", "closed": "Closed form"},
    "others": {
        "mean": "Mean of the changes",
        "sum": "Sum of the changes",
        "base": "As in the base",
    },
}
LEFT_OUT = {"scale": "1/N"}
DTYPE_LABEL = "Stored as"
ROUNDING_LABEL = "Rounding"
ROUNDINGS = [("To nearest", "nearest"), ("Stochastic (seeded)", "stochastic")]
SEED_LABEL = "Seed"
DEVICE_LABEL = "Device"
NAME_OF_MERGE = "Name of this merge"
MERGE_BUTTON = "Merge"
ROUNDING_TRAP = (
    "In {dtype}, rounding to nearest can lose part of the rescaling: RL changes are often a single "
    "step of that format, and λ × one step rounds back to one step. Stochastic rounding keeps it "
    "on average, float32 exactly. The result shows the λ that was really stored."
)
NOTHING_MERGED = "Nothing merged yet. Choose a method and press Merge."
STOPPED_MERGE = "Stopped. Nothing was left behind."
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

WAITING = "Waiting for its turn"
BUSY = "Another job of this session is running. Stop it, or wait until it is done."
NEED_LOAD = "Nothing is loaded yet. Go back to Load and use the example or your own models."
