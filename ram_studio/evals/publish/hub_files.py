"""Files that a push adds to a merged folder: mergekit's recipe, scores, the compact analysis."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
from ram_studio.checkpoints.hub.analyses import MOST_COMPACT_BYTES
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.read.describe import (
    MERGED_NAME,
    printable,
    quoted,
    shell_word,
    shown_bytes,
    shown_list,
)
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.checkpoints.record.card import public_recipe
from ram_studio.checkpoints.record.mergekit import export_mergekit
from ram_studio.checkpoints.record.provenance import Provenance, read_provenance
from ram_studio.errors import AnalysisError, EvaluationError, HubError, SettingsError
from ram_studio.evals.answering.engine import reason_of
from ram_studio.evals.publish.scores import card_with, hub_results, sources_in, stored_scores
from ram_studio.evals.store import AnswerStore

MERGEKIT_FILE = "mergekit_config.yml"
ANALYSIS_FILE = "ram_studio.analysis"
"""Not a .safetensors file: those are loaded with a model."""


def mergekit_file(provenance: Provenance) -> dict[str, bytes]:
    """Return `mergekit_config.yml` by its name, nothing where mergekit cannot express the recipe.

    Comments above it name mergekit's differences.
    """
    recipe = public_recipe(provenance)
    if recipe.dtype is None:
        recipe = recipe.model_copy(update={"dtype": DTYPE_WORDS.get(provenance.dtype)})
    try:
        text, warnings = export_mergekit(recipe)
    except SettingsError:
        return {}
    notes = "".join(f"# {printable(warning, 400)}\n" for warning in warnings)
    return {MERGEKIT_FILE: f"# Merged with RAM Studio, not with mergekit.\n{notes}{text}".encode()}


def score_files(
    folder: Path, repository: str, store: AnswerStore, provenance: Provenance
) -> dict[str, bytes]:
    """Return the card with the store's scores of a merge, and files of `.eval_results/`, by name.

    Raises: EvaluationError where the store has no scores, or the card cannot be read.
    """
    checkpoint = open_checkpoint(str(folder), name=MERGED_NAME)
    own = model_fingerprint(folder, checkpoint.fingerprint)
    runs = list(stored_scores(store, own, sources_in(store, provenance)))
    if not runs:
        raise EvaluationError(
            f"The store {store.path} has no scores of {printable(folder)}. Run first: "
            f"ram-studio evaluate {shell_word(folder)}"
        )
    files, results = hub_results(store, runs)
    if results:
        asked = [run.suite for run, _ in runs]
        try:
            card = card_with(_card(folder, repository), repository, results, asked)
            files["README.md"] = card.encode()
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise EvaluationError(
                f"The card of {repository} cannot be read: {reason_of(error)}. Repair its "
                "README.md, or push without scores."
            ) from error
    return files


def _card(folder: Path, repository: str) -> str:
    """Return the repository's card, which its owner may have edited, or else the folder's."""
    from ram_studio.checkpoints.hub.repository import talking_to
    from ram_studio.checkpoints.hub.transfer import fetch_file

    card = folder / "README.md"
    with suppress(HubError), talking_to(repository, None, None):
        card = fetch_file(repository, "README.md")
    return card.read_text(encoding="utf-8")


def analysis_file(provenance: Provenance, file: Path) -> dict[str, bytes]:
    """Return the compact analysis of a merge's sources by its name.

    Raises: AnalysisError where it has other sources, or is too large.
    """
    analysis = load_analysis(file)
    check_sources(provenance, analysis)
    compact = analysis if analysis.is_compact else analysis.compact()
    with TemporaryDirectory(prefix="ram-studio-") as folder:
        data = save_analysis(compact, Path(folder, ANALYSIS_FILE)).read_bytes()
    if len(data) > MOST_COMPACT_BYTES:
        raise AnalysisError(
            f"{printable(file)} takes {shown_bytes(len(data))} as a compact analysis, at most "
            f"{shown_bytes(MOST_COMPACT_BYTES)} are shown; push without it."
        )
    return {ANALYSIS_FILE: data}


def check_sources(provenance: Provenance, analysis: Analysis) -> None:
    """Raise AnalysisError where an analysis has other sources than the merge."""
    merged = {name: source.fingerprint for name, source in provenance.sources.items()}
    known = dict(analysis.fingerprints)
    other = sorted(n for n in merged.keys() | known.keys() if merged.get(n) != known.get(n))
    if list(analysis.agents) != list(provenance.agents) or other:
        what = shown_list(other, show=quoted) or "the order of the agents"
        raise AnalysisError(
            f"The analysis is not of the checkpoints that were merged: {what} differs. Analyze "
            "the sources of the recipe."
        )


def push_files(
    folder: Path, repository: str, *, store: AnswerStore | None, analysis: Path | None
) -> dict[str, bytes]:
    """Return all files that a push adds or replaces, by name; store: of scores, None for none.

    Raises: VerificationError without a valid provenance; EvaluationError; AnalysisError.
    """
    provenance = read_provenance(folder)
    return {
        **mergekit_file(provenance),
        **({} if store is None else score_files(folder, repository, store, provenance)),
        **({} if analysis is None else analysis_file(provenance, analysis)),
    }
