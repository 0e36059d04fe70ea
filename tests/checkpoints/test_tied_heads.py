"""Tied heads: every way in which base and agents can store one matrix once or twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.errors import CompatibilityError

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIED = QWEN_CONFIG | {"tie_word_embeddings": True}
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


@pytest.mark.parametrize("config", [TIED, SILENT])
@pytest.mark.parametrize("stores", ["one", "same", "head"])
def test_a_base_with_one_matrix_takes_it_from_any_tied_agent(
    tmp_path: Path, stores: str, config: dict
) -> None:
    base = make(tmp_path, "base", model(0, "one"), config=config)
    agent = make(tmp_path, "a", model(1, stores), config=config)
    report = check_compatibility(base, [agent])
    assert HEAD not in {t.name for t in report.tensors}
    source = HEAD if stores == "head" else EMBEDDING
    assert pair(report, EMBEDDING) == ((source,), True, None)
    assert report.counted_elements == 108
    assert report.warnings == ()


@pytest.mark.parametrize("config", [TIED, SILENT])
@pytest.mark.parametrize("stores", ["one", "same", "head"])
def test_a_base_that_stores_it_twice_counts_it_once(
    tmp_path: Path, stores: str, config: dict
) -> None:
    base = make(tmp_path, "base", model(0, "same"), config=config)
    agent = make(tmp_path, "a", model(1, stores), config=config)
    report = check_compatibility(base, [agent])
    sources = {
        "one": (EMBEDDING, EMBEDDING),
        "same": (EMBEDDING, HEAD),
        "head": (HEAD, HEAD),
    }[stores]
    assert pair(report, EMBEDDING) == ((sources[0],), True, None)
    assert pair(report, HEAD) == ((sources[1],), False, EMBEDDING)
    assert report.counted_elements == 108
    assert report.to_dict()["tied"] == {HEAD: EMBEDDING}


def test_a_base_that_stores_only_the_head_takes_the_agents_embedding(tmp_path: Path) -> None:
    base = make(tmp_path, "base", model(0, "head"), config=TIED)
    agent = make(tmp_path, "a", model(1, "one"), config=TIED)
    report = check_compatibility(base, [agent])
    assert pair(report, HEAD) == ((EMBEDDING,), True, None)


def test_untied_heads_are_two_tensors(tmp_path: Path) -> None:
    base = make(tmp_path, "base", model(0, "two"))
    report = check_compatibility(base, [make(tmp_path, "a", model(1, "two"))])
    assert pair(report, HEAD) == ((HEAD,), True, None)
    assert report.counted_elements == 148


def test_an_untied_base_and_an_agent_without_a_head_is_an_error(tmp_path: Path) -> None:
    base = make(tmp_path, "base", model(0, "two"))
    for config in (QWEN_CONFIG, SILENT):
        agent = make(tmp_path, "a", model(1, "one"), config=config)
        with pytest.raises(CompatibilityError, match=r"`lm_head\.weight` is missing"):
            check_compatibility(base, [agent])


def test_an_agent_whose_config_ties_lends_its_embedding_to_an_untied_base(
    tmp_path: Path,
) -> None:
    base = make(tmp_path, "base", model(0, "two"))
    agent = make(tmp_path, "a", model(1, "one"), config=TIED)
    report = check_compatibility(base, [agent])
    assert pair(report, HEAD) == ((EMBEDDING,), True, None)
    assert any("tie_word_embeddings is True" in w for w in report.warnings)


@pytest.mark.parametrize("base_stores", ["one", "same"])
def test_a_head_trained_apart_from_a_tied_base_is_an_error_or_left_out(
    tmp_path: Path, base_stores: str
) -> None:
    base = make(tmp_path, "base", model(0, base_stores), config=TIED)
    agent = make(tmp_path, "coder", model(1, "two"))
    with pytest.raises(CompatibilityError, match=r'Agent "coder": tensor `lm_head\.weight` diff'):
        check_compatibility(base, [agent])
    report = check_compatibility(base, [agent], extra="ignore")
    assert pair(report, EMBEDDING) == ((EMBEDDING,), True, None)
    if base_stores == "same":
        assert pair(report, HEAD) == ((EMBEDDING,), False, EMBEDDING)
    assert any("left out, as asked" in w for w in report.warnings)


def test_an_equal_start_without_a_tie_may_be_trained_apart(tmp_path: Path) -> None:
    base = make(tmp_path, "base", model(0, "same"), config=QWEN_CONFIG)
    agents = [make(tmp_path, "a", model(1, "two")), make(tmp_path, "b", model(2, "same"))]
    report = check_compatibility(base, agents)
    assert pair(report, HEAD) == ((HEAD, HEAD), True, None)
    assert report.counted_elements == 148
    assert any('not in "a"' in w for w in report.warnings)


def test_a_config_that_ties_what_is_stored_apart_is_reported(tmp_path: Path) -> None:
    base = make(tmp_path, "base", model(0, "two"), config=TIED)
    report = check_compatibility(base, [make(tmp_path, "a", model(1, "two"), config=TIED)])
    assert pair(report, HEAD) == ((HEAD,), True, None)
    assert any("merged as two matrices" in w for w in report.warnings)


def test_heads_that_differ_in_the_last_byte_only_are_found(tmp_path: Path) -> None:
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


def test_a_tied_vocabulary_of_other_rows_is_merged_once_over_common_rows(
    tmp_path: Path,
) -> None:
    base = make(tmp_path, "base", model(0, "same"), config=TIED)
    tensors = model(1, "one")
    tensors[EMBEDDING] = torch.ones(7, 4, dtype=torch.bfloat16)
    agent = make(tmp_path, "a", tensors, config=TIED)
    with pytest.raises(CompatibilityError, match="rows: common"):
        check_compatibility(base, [agent])
    report = check_compatibility(base, [agent], rows="common")
    by_name = {t.name: t.common_numel for t in report.tensors}
    assert by_name[HEAD] == by_name[EMBEDDING] == (28,)


def test_the_text_embedding_of_a_model_with_several_is_found_by_shape(tmp_path: Path) -> None:
    extra = {"vision.embed_tokens.weight": torch.ones(3, 4, dtype=torch.bfloat16)}
    base = make(tmp_path, "base", extra | model(0, "same"), config=TIED)
    agent = make(tmp_path, "a", extra | model(1, "one"), config=TIED)
    report = check_compatibility(base, [agent])
    assert pair(report, HEAD) == ((EMBEDDING,), False, EMBEDDING)


def test_a_nested_text_config_can_tie(tmp_path: Path) -> None:
    config = SILENT | {"text_config": {"tie_word_embeddings": True}}
    base = make(tmp_path, "base", model(0, "two"), config=QWEN_CONFIG)
    agent = make(tmp_path, "a", model(1, "one"), config=config)
    assert pair(check_compatibility(base, [agent]), HEAD)[0] == (EMBEDDING,)
