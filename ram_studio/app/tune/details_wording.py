"""Texts of what looks closer: the storage report, rounding, relations, the microscope."""

from __future__ import annotations

STORED_HEADING = "What is stored"
STORED_MORE = "Every model"
STORED_FINE = "Nothing odd: what differs from the base was trained."
STORED_FINE_SO_FAR = "Nothing odd in the headers; the analysis tells the rest."
STORED_ONE_ODD = "One thing to know before you merge."
STORED_ODD = "{n} things to know before you merge."
STORED_COLUMNS = {
    "model": "Model",
    "dtype": "Stored as",
    "head": "Head and embedding",
    "density": "Changed",
    "rho": "ρ",
    "stored": ", as stored",
    "rounded": ", rounded to the base's format",
    "verdict": "Verdict",
}
STORED_HEADS = {
    "both": "both stored",
    "embedding": "embedding only",
    "head": "head only",
    "none": "neither",
}
STORED_TIED = {True: "one matrix", False: "two matrices"}
STORED_VERDICTS = {
    "training": "trained",
    "partly-storage": "partly storage",
    "storage": "storage, not training",
    "unchanged": "equals the base",
}
FORMATS = ("bfloat16", "float16", "float32")
ROUNDING_HEADING = "What rounding keeps of the rescaling"
ROUNDING_MORE = "By format and by layer"
ROUNDING_NOTE = (
    "Factor on the changes that an agent made alone, expected from the sizes of its changes: to "
    "nearest with the range it must lie in, stochastic with its standard error. The merge measures "
    "it."
)
ROUNDING_LAYERS = "Share of the intended change that is kept, to nearest (at ε = 10⁻⁵)"
AGREE_HEADING = "Do the agents pull the same way?"
AGREE_MORE = "By agent, pair and layer"
AGREE_AGENTS = ("Agent", "ρ by count", "ρ by size", "of its shared change cancelled")
AGREE_NOTE = (
    "ρ by size compares sums of |τ| instead of numbers of weights: it differs where shared changes "
    "are larger or smaller than unique ones. The rule RAM+m uses it. Cancelled: the part of an "
    "agent's shared change that points against the sum."
)
AGREE_PAIRS = ("Pair", "both changed", "opposite signs", "cancels out")
COSINE_HEADING = "Direction of all changes (cosine)"
COSINE_NOTE = (
    "1: the same direction. 0: unrelated. Below 0: against each other. All changes, any ε."
)
AGREE_LAYERS = "In the shared weights of each layer (at ε = 10⁻⁵)"
AGREE_MEASURES = ("Opposite signs", "Cancelled")
SCOPE_HEADING = "Microscope: one weight at a time"
SCOPE_LEAD = (
    "Single weights under the microscope, read from your files: what each agent made of a weight, "
    "and what every method would store there with the settings above."
)
SCOPE_LAYER = "Layer"
SCOPE_MODULE = "Module"
SCOPE_TENSOR = "Tensor"
SCOPE_ALL = "All"
SCOPE_START = "First weight shown"
SCOPE_LAYOUT = "Show"
SCOPE_LAYOUTS = [("Run", "run"), ("Matrix window", "window")]
SCOPE_JUMP_TO = "Jump to the next"
SCOPE_JUMP = "Jump"
SCOPE_SHARED = "weight that several agents changed"
SCOPE_UNIQUE = "weight that only {agent} changed"
SCOPE_CONFLICT = "strongest conflict of this tensor"
SCOPE_NOT_FOUND = "There is no such weight further on in this tensor."
SCOPE_CUT = "There is none among the next {n} weights; move the start and search on."
SCOPE_FACTS = (
    "{shape} weights in {dtype} · changed means by more than {epsilon} · read {read} bytes"
)
SCOPE_AT = "Weight {index}"
SCOPE_PLACE = "row {row}, column {column}"
SCOPE_ROW = "row"
STORED_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
SCOPE_DTYPES = [
    ("As the base", ""),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float32", "float32"),
]
