"""What the report warns of: same files, configs, tokenizers."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors, write_json

from ram_studio.checkpoints.fit.cautions import cautions
from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.fit.tokenizers import all_stop_tokens, compare_templates
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.write.sidecars import sidecar_files


def warnings_of(base: Checkpoint, *agents: Checkpoint) -> list[str]:
    return list(check_compatibility(base, agents).warnings)


def test_the_same_files_are_named(tmp_path):
    base = make(tmp_path, "base", small_tensors(0))
    agents = [make(tmp_path, name, small_tensors(1)) for name in ("a", "b")]
    [warning] = warnings_of(base, *agents)
    assert '"a" and "b" hold the same files' in warning
    [warning] = warnings_of(base, make(tmp_path, "coder", small_tensors(0)))
    assert warning.startswith('Agent "coder": it holds the same files as the base')


@pytest.mark.parametrize("place", ["coder/lora_adapter", "lora_adapter"])
def test_an_adapter_that_was_never_applied_is_found_beside_it(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    write_json(tmp_path / place / "adapter_config.json", {})
    base = make(tmp_path, "base", small_tensors(0))
    [warning] = warnings_of(base, make(tmp_path, "coder", small_tensors(0)))
    assert f"Your adapter was never applied: it is in {tmp_path / place}" in warning


YARN = {"type": "yarn", "factor": 2.0}
ROPE = QWEN_CONFIG | {"rope_theta": 1e4, "eos_token_id": 7}
CODE = QWEN_CONFIG | {"auto_map": {"AutoModel": "modeling.Model"}}
DIFFERS = 'Agent "a": its config differs'


def parameters(**values: Any) -> dict[str, Any]:
    """Return a config in the words of transformers 5."""
    return QWEN_CONFIG | {"rope_parameters": {"rope_theta": 1e6, **values}}


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (None, QWEN_CONFIG, ["no config.json"]),
        (CODE, QWEN_CONFIG, ["auto_map"]),
        (ROPE, ROPE | {"num_attention_heads": 4}, [DIFFERS, "heads is 4, in the base 2"]),
        (ROPE, ROPE | {"architectures": ["LlamaForCausalLM"]}, [DIFFERS, "LlamaForCausalLM"]),
        (ROPE, ROPE | {"rope_theta": 1e6}, [DIFFERS, "theta is 1000000.0, in the base 10000.0"]),
        (ROPE, ROPE | {"rope_scaling": YARN}, [DIFFERS, "rope_scaling is set in the agent"]),
        (ROPE, ROPE | {"bos_token_id": 5}, []),
        (ROPE | {"bos_token_id": 7}, ROPE | {"bos_token_id": 5}, [DIFFERS, "is 5, in the base 7"]),
        # The same in the words of two versions of transformers.
        (QWEN_CONFIG | {"rope_theta": 1e6, "rope_scaling": None}, parameters(), []),
        (QWEN_CONFIG | {"rope_theta": 1e6}, parameters(rope_type="default"), []),
        (
            QWEN_CONFIG | {"rope_theta": 1e6, "rope_scaling": YARN},
            parameters(rope_type="yarn", factor=2.0),
            [],
        ),
        # What only one of them spells out may be the other's default.
        (QWEN_CONFIG, QWEN_CONFIG | {"head_dim": 2, "use_cache": False}, []),
    ],
)
def test_configs_that_compute_something_else_are_reported(tmp_path, ours, theirs, words):
    base = make(tmp_path, "base", small_tensors(0), config=ours)
    warnings = warnings_of(base, make(tmp_path, "a", small_tensors(1), config=theirs))
    assert len(warnings) == bool(words)
    for text in words:
        assert text in warnings[0]


ADDED, NEW = [{"id": 3, "content": "<|end|>"}], {"id": 4, "content": "<t>"}
TOKENIZER = {"added_tokens": ADDED, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}}}
SETTINGS = {"chat_template": "{{ messages }}", "eos_token": "<|end|>"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    base = make(tmp_path, "base", small_tensors(0))
    agent = make(tmp_path, "coder", small_tensors(1))
    for checkpoint in (base, agent):
        write_json(checkpoint.folder / "tokenizer.json", TOKENIZER)
        write_json(checkpoint.folder / "tokenizer_config.json", SETTINGS)
    return base, agent


def test_equal_tokenizers_are_not_mentioned(pair):
    base, agent = pair
    assert warnings_of(base, agent) == []
    # Equal in meaning, written differently.
    path = agent.folder / "tokenizer.json"
    path.write_text(path.read_text().replace(", ", " ,\n"))
    assert warnings_of(base, agent) == []


@pytest.mark.parametrize(
    ("tokenizer", "settings", "words"),
    [
        ({"added_tokens": [*ADDED, NEW]}, {}, "5 tokens, the base has 4; added tokens <t> (id 4)"),
        ({"added_tokens": []}, {}, "3 tokens, the base has 4; lacking tokens <|end|> (id 3)"),
        ({"model": {"vocab": {"a": 1, "b": 0, "c": 2}}}, {}, "2 tokens of the vocabulary under"),
        ({"model": {"vocab": {"a": 0, "b": 1, "d": 2}}}, {}, "1 token of the base's vocabulary"),
        ({}, {"eos_token": {"content": "b"}}, "end token b instead of <|end|>"),
    ],
)
def test_tokenizer_differences_are_said_in_words(pair, tokenizer, settings, words):
    base, agent = pair
    write_json(agent.folder / "tokenizer.json", TOKENIZER | tokenizer)
    write_json(agent.folder / "tokenizer_config.json", SETTINGS | settings)
    [warning] = warnings_of(base, agent)
    assert warning.startswith('Agent "coder": its tokenizer differs')
    assert words in warning


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (SETTINGS, SETTINGS | {"chat_template": "other"}, "it has another chat template"),
        (SETTINGS, {"eos_token": "<|end|>"}, "it has no chat template, the base has one"),
        ({"eos_token": "<|end|>"}, SETTINGS, "it has a chat template, the base has none"),
    ],
)
def test_another_chat_template_is_a_warning_of_its_own(pair, ours, theirs, words):
    base, agent = pair
    write_json(base.folder / "tokenizer_config.json", ours)
    write_json(agent.folder / "tokenizer_config.json", theirs)
    [finding] = check_compatibility(base, [agent]).findings
    assert (finding.kind, finding.agents) == ("chat-template", ("coder",))
    assert finding.text.startswith(f'Agent "coder": {words}')
    ours, theirs = ours.get("chat_template", ""), theirs.get("chat_template", "")
    assert compare_templates(base, agent) == [(ours, theirs)]


def test_templates_are_compared_line_by_line(pair):
    base, agent = pair
    (base.folder / "chat_template.jinja").write_text("a\nb\nc\nd\ne")
    (agent.folder / "chat_template.jinja").write_text("a\nB\nmore\nc\nd")
    dots = ("...", "...")
    assert compare_templates(base, agent) == [("b", "B"), ("", "more"), dots, ("e", "")]


def test_stop_tokens_of_agents_are_told_and_offered(pair):
    base, agent = pair
    other = make(agent.folder.parent, "memory", small_tensors(2), config={"eos_token_id": [3, 1]})
    write_json(base.folder / "generation_config.json", {"eos_token_id": 3, "top_k": 4})
    write_json(agent.folder / "generation_config.json", {"eos_token_id": [3, 5]})
    size = replace(base, config=base.config | {"vocab_size": 5})
    found = [f for f in cautions(base, [agent, other]) if f.kind == "stop-tokens"]
    assert [f.agents for f in found] == [("coder",), ("memory",)]
    assert "1 token after which the base continues (5)" in found[0].text
    assert "set stop_tokens: union" in found[0].text
    assert all_stop_tokens(base, [agent, other]) == (3, 5, 1)
    assert all_stop_tokens(size, [agent, other]) == (3, 1)  # it has no token 5
    files = sidecar_files(base, stop_tokens=all_stop_tokens(base, [agent, other]))
    written = json.loads(files["generation_config.json"])
    assert written == {"eos_token_id": [3, 5, 1], "top_k": 4}


BOTH = ["tokenizer.json", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("files", "of_agent", "said"),
    [
        ([], [], ["no tokenizer files", "add them to the base's folder first"]),
        ([], BOTH, ["no tokenizer files", "(tokenizer: coder)"]),
        (BOTH[:1], BOTH[:1], ["no chat template", "used in a chat"]),
        (BOTH, [], []),
    ],
)
def test_an_impossible_option_of_a_merge_is_told_at_the_start(tmp_path, files, of_agent, said):
    base, agent = (
        make(tmp_path, name, small_tensors(i)) for i, name in enumerate(("base", "coder"))
    )
    for checkpoint, names in ((base, files), (agent, of_agent)):
        for name in names:
            (checkpoint.folder / name).write_text("{}")
    found = check_compatibility(base, [agent]).findings
    notes = [f.text for f in found if f.level == "note"]
    assert len(notes) == bool(said)
    assert all(words in notes[0] for words in said)


def test_a_chat_template_in_a_file_of_its_own_is_compared(pair):
    base, agent = pair
    (agent.folder / "chat_template.jinja").write_text("{{ messages }}")
    assert warnings_of(base, agent) == []
    (agent.folder / "chat_template.jinja").write_text("{{ messages }} go")
    assert "another chat template" in warnings_of(base, agent)[0]


def test_vocabularies_of_older_layouts_are_compared(pair):
    base, agent = pair
    (agent.folder / "tokenizer.json").unlink()
    write_json(agent.folder / "vocab.json", {"a": 0, "b": 1, "c": 2})
    write_json(agent.folder / "added_tokens.json", {"<|end|>": 3})
    assert warnings_of(base, agent) == []
    unigram = TOKENIZER | {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}}
    write_json(agent.folder / "tokenizer.json", unigram)
    assert "1 token of the base's vocabulary missing" in warnings_of(base, agent)[0]


def forbid(forbidden: Path) -> Callable[..., Any]:
    """Return `open` of somebody who may not read a file."""
    real = open

    def checked(file: Any, *rest: Any, **named: Any) -> Any:
        if file == forbidden:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(file, *rest, **named)

    return checked


def test_a_tokenizer_that_cannot_be_read_is_a_warning(pair, monkeypatch):
    base, agent = pair
    (agent.folder / "tokenizer.json").write_text("{")
    assert "cannot be compared" in warnings_of(base, agent)[0]
    shown = 'cannot be compared (Agent "coder": %s cannot be read: Permission denied'
    with monkeypatch.context() as patch:  # root may read everything
        for name in ("builtins.open", "io.open"):
            patch.setattr(name, forbid(agent.folder / "tokenizer.json"))
        assert shown % (agent.folder / "tokenizer.json") in warnings_of(base, agent)[0]
    write_json(agent.folder / "tokenizer.json", {"added_tokens": "x", "model": []})
    assert warnings_of(base, agent)
    for path in agent.folder.glob("tokenizer*"):
        path.unlink()
    assert warnings_of(base, agent) == []
    shutil.rmtree(agent.folder)
    assert warnings_of(base, agent) == []
