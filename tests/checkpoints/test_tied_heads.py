"""Tied heads: every way in which base and agents can store one matrix once or twice."""

from __future__ import annotations

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.errors import CompatibilityError

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIED = QWEN_CONFIG | {"tie_word_embeddings": True}
UNTIED = QWEN_CONFIG
SILENT = {key: value for key, value in QWEN_CONFIG.items() if key != "tie_word_embeddings"}


def model(seed: int, stores: str) -> dict[str, torch.Tensor]:
    """Return a model that stores "one" matrix, "head" alone, "same" twice or "two" matrices."""
    tensors = small_tensors(seed)
    if stores == "same":
        tensors[HEAD] = tensors[EMBEDDING].clone()
    elif stores == "one":
        del tensors[HEAD]
    elif stores == "head":
        del tensors[EMBEDDING]
    return tensors


def pair(report: CompatibilityReport, name: str) -> tuple[tuple[str, ...], bool, str | None]:
    """Return which of each agent's tensors goes into `name`, and how it counts."""
    tensor = next(t for t in report.tensors if t.name == name)
    return tuple(info.name for info in tensor.agents), tensor.is_counted, tensor.tied_to


# Where the merged matrices come from: of the embedding, and of the head where there is one.
ONCE = [("one", (EMBEDDING,)), ("same", (EMBEDDING,)), ("head", (HEAD,))]
TWICE = [("one", (EMBEDDING, EMBEDDING)), ("same", (EMBEDDING, HEAD)), ("head", (HEAD, HEAD))]
NESTED = SILENT | {"text_config": {"tie_word_embeddings": True}}


@pytest.mark.parametrize(
    ("base", "agent", "sources", "warning"),
    [
        *((("one", c), (stores, c), taken, "") for c in (TIED, SILENT) for stores, taken in ONCE),
        *((("same", c), (stores, c), taken, "") for c in (TIED, SILENT) for stores, taken in TWICE),
        (("head", TIED), ("one", TIED), (None, EMBEDDING), ""),
        (("two", UNTIED), ("two", UNTIED), (EMBEDDING, HEAD), ""),
        # An agent whose config ties lends its embedding to an untied base.
        (("two", UNTIED), ("one", TIED), (EMBEDDING, EMBEDDING), "tie_word_embeddings is True"),
        (("two", UNTIED), ("one", NESTED), (EMBEDDING, EMBEDDING), ""),
        # The base's config ties what is stored apart.
        (("two", TIED), ("two", TIED), (EMBEDDING, HEAD), "merged as two matrices"),
        # An equal start without a tie may be trained apart.
        (("same", UNTIED), ("two", UNTIED), (EMBEDDING, HEAD), 'not in "a"'),
    ],
)
def test_the_matrix_is_taken_from_where_the_agent_keeps_it(tmp_path, base, agent, sources, warning):
    stored, config = base
    report = check_compatibility(
        make(tmp_path, "base", model(0, stored), config=config),
        [make(tmp_path, "a", model(1, agent[0]), config=agent[1])],
    )
    names = {t.name for t in report.tensors}
    is_once = stored == "same" and not warning
    for name, source in zip((EMBEDDING, HEAD), sources, strict=False):
        if source is None:
            assert name not in names
        elif name == HEAD and is_once:
            assert pair(report, HEAD) == ((source,), False, EMBEDDING)
        else:
            assert pair(report, name) == ((source,), True, None)
    assert (HEAD in names) == (stored != "one")
    assert report.counted_elements == (148 if stored == "two" or warning else 108)
    assert report.to_dict()["tied"] == ({HEAD: EMBEDDING} if is_once else {})
    assert any(warning in w for w in report.warnings) if warning else True


def test_an_untied_base_and_an_agent_without_a_head_is_an_error(tmp_path):
    base = make(tmp_path, "base", model(0, "two"))
    for config in (QWEN_CONFIG, SILENT):
        agent = make(tmp_path, "a", model(1, "one"), config=config)
        with pytest.raises(CompatibilityError, match=r"`lm_head\.weight` is missing"):
            check_compatibility(base, [agent])


@pytest.mark.parametrize("base_stores", ["one", "same"])
def test_a_head_trained_apart_from_a_tied_base_is_an_error(tmp_path, base_stores):
    base = make(tmp_path, "base", model(0, base_stores), config=TIED)
    agent = make(tmp_path, "coder", model(1, "two"))
    with pytest.raises(CompatibilityError, match=r'Agent "coder": tensor `lm_head\.weight` diff'):
        check_compatibility(base, [agent])
    report = check_compatibility(base, [agent], extra="ignore")
    assert pair(report, EMBEDDING) == ((EMBEDDING,), True, None)
    if base_stores == "same":
        assert pair(report, HEAD) == ((EMBEDDING,), False, EMBEDDING)
    assert any("left out (extra: ignore)" in w for w in report.warnings)


def test_heads_that_differ_in_the_last_byte_only_are_found(tmp_path):
    rows = 700_000  # more than one block of the comparison
    tensors = small_tensors()
    tensors[EMBEDDING] = torch.zeros(rows, 4, dtype=torch.bfloat16)
    tensors[HEAD] = tensors[EMBEDDING].clone()
    base = make(tmp_path, "base", tensors, config=TIED)
    assert _is_counted(base) is False
    tensors[HEAD][-1, -1] = 1
    changed = make(tmp_path, "base", tensors, config=SILENT)
    assert _is_counted(changed) is True


def _is_counted(base: Checkpoint) -> bool:
    agent = Checkpoint(**{**vars(base), "name": "a"})
    return pair(check_compatibility(base, [agent]), HEAD)[1]


@pytest.mark.parametrize("embedding", [EMBEDDING, "backbone.embeddings.weight"])
def test_a_tied_vocabulary_is_merged_once_over_common_rows(tmp_path, embedding):
    ours, theirs = model(0, "same"), model(1, "one")
    theirs[EMBEDDING] = torch.ones(7, 4, dtype=torch.bfloat16)
    for tensors in (ours, theirs):
        tensors[embedding] = tensors.pop(EMBEDDING)
    base = make(tmp_path, "base", ours, config=TIED)
    agent = make(tmp_path, "a", theirs, config=TIED)
    with pytest.raises(CompatibilityError, match="rows: common"):
        check_compatibility(base, [agent])
    report = check_compatibility(base, [agent], rows="common")
    by_name = {t.name: t.common_numel for t in report.tensors}
    assert by_name[HEAD] == by_name[embedding] == (28,)


def test_the_text_embedding_among_several_is_found_by_shape(tmp_path):
    extra = {"vision.embed_tokens.weight": torch.ones(3, 4, dtype=torch.bfloat16)}
    base = make(tmp_path, "base", extra | model(0, "same"), config=TIED)
    agent = make(tmp_path, "a", extra | model(1, "one"), config=TIED)
    report = check_compatibility(base, [agent])
    assert pair(report, HEAD) == ((EMBEDDING,), False, EMBEDDING)
