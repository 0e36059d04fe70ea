"""A model that nobody here made, SmolLM2-135M-Instruct, through every command, as a user would.

`make test-real` makes the model and three agents of it (scripts/real_model.py) and runs this.
Nothing here is about scores: it is a small model and a few steps. It is about a real tokenizer,
chat template and config, 272 tensors of 135 M elements, several shards, and text that stays
sensible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question
from ram_studio.evals.suites import SuiteSettings
from ram_studio.evals.suites.memory import MAX_NEW_TOKENS, make

FOLDER = os.environ.get("RAM_STUDIO_REAL_MODEL")
AGENTS = ("numbers", "calls", "recall")
EPSILON = 1e-5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        FOLDER is None,
        reason="RAM_STUDIO_REAL_MODEL names no folder with a real model; `make test-real` makes it",
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """On a busy machine two threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def folder(name: str) -> Path:
    return Path(str(FOLDER)) / name


def sources() -> list[str]:
    named = [("--agent", f"{agent}={folder(agent)}") for agent in AGENTS]
    return ["--base", str(folder("base")), *(text for pair in named for text in pair)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "ram_studio", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **own},
    )


def ram_studio(*arguments: object) -> Any:
    """Run a command and return its JSON."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a folder as float64."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= {name: tensor.double() for name, tensor in load_file(file).items()}
    return found


@pytest.fixture(scope="module")
def analysis() -> dict[str, Any]:
    return ram_studio("analyze", *sources())


@pytest.fixture(scope="module")
def merged(tmp_path_factory) -> Path:
    """The agents merged in bfloat16 with stochastic rounding, in several shards."""
    out = tmp_path_factory.mktemp("merged") / "smollm2-merged"
    ram_studio(
        *("merge", *sources(), "--out", out, "--rounding", "stochastic"),
        *("--max-shard-size", "80MB"),
    )
    return out


def test_inspect_finds_that_they_fit():
    report = ram_studio("inspect", *sources())
    assert "does not fit" not in json.dumps(report)
    assert json.dumps(report).count("272") >= 4


def test_analyze_counts_what_a_plain_comparison_counts(analysis):
    base = load_file(folder("base") / "model.safetensors")
    taus = [load_file(folder(agent) / "model.safetensors") for agent in AGENTS]
    counted = {agent: [0, 0, 0] for agent in AGENTS}
    for name, tensor in base.items():
        active = torch.stack([(t[name].float() - tensor.float()).abs() > EPSILON for t in taus])
        overlap = active.sum(0)
        for row, agent in enumerate(AGENTS):
            for c in (1, 2, 3):
                counted[agent][c - 1] += int((active[row] & (overlap == c)).sum())
    for agent, row in analysis["agents"].items():
        assert row["overlap"] == counted[agent]
        assert row["total"] == sum(tensor.numel() for tensor in base.values()) == 134_515_008
    # Sparse and different, some of it alone and some of it shared: something to merge.
    densities = {agent: analysis["agents"][agent]["density"] for agent in AGENTS}
    assert all(0.005 < density < 0.2 for density in densities.values()), densities
    assert densities["recall"] < densities["calls"]
    assert len(analysis["patterns"]) == 7
    assert min(analysis["patterns"].values()) > 10_000


@pytest.mark.parametrize(
    ("dtype", "rounding", "low", "high"),
    [
        # Of the asked lambda - 1, the share that the output's dtype keeps.
        ("bfloat16", "nearest", -0.5, 0.9),
        ("bfloat16", "stochastic", 0.95, 1.05),
        ("float16", "nearest", 0.5, 1.5),
        ("float32", "nearest", 0.999, 1.001),
    ],
)
def test_a_merge_in_several_shards_is_verified_in_full(
    dtype, rounding, low, high, analysis, tmp_path
):
    out = tmp_path / "merged"
    result = ram_studio(
        *("merge", *sources(), "--out", out, "--dtype", dtype, "--rounding", rounding),
        *("--max-shard-size", "80MB"),
    )
    shards = list(out.glob("*.safetensors"))
    assert len(shards) > 3
    report = ram_studio("verify", out, "--sources", "--full")
    assert report["match"] is True
    assert report["tensors"] == 272
    assert report["compared_bytes"] == report["total_bytes"]
    for agent in ("numbers", "calls"):
        row = result["agents"][agent]
        assert row["lambda"] == analysis["agents"][agent]["lambda"] > 1.1
        assert low < (row["effective_lambda"] - 1) / (row["lambda"] - 1) < high
    # One flipped bit is found, and its shard named.
    shard = max(shards, key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[-1000] ^= 1
    shard.write_bytes(content)
    done = run("verify", out)
    assert done.returncode == 65
    assert shard.name in done.stdout + done.stderr


def test_merged_elements_follow_the_formula(analysis, tmp_path):
    out = tmp_path / "merged"
    ram_studio("merge", *sources(), "--out", out, "--dtype", "float32")
    result, base = weights(out), weights(folder("base"))
    agents = [weights(folder(agent)) for agent in AGENTS]
    factors = torch.tensor([analysis["agents"][agent]["lambda"] for agent in AGENTS]).double()
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.15.mlp.down_proj.weight",
        "model.layers.29.post_attention_layernorm.weight",
    ):
        taus = torch.stack([agent[name] - base[name] for agent in agents])
        active = taus.abs() > EPSILON
        count = active.sum(0)
        lone = (taus * active * factors.view(-1, *[1] * base[name].dim())).sum(0)
        mean = (taus * active).sum(0) / count.clamp(min=1)
        expected = base[name] + torch.where(count == 1, lone, mean)
        assert torch.equal(result[name].float()[count == 0], base[name].float()[count == 0])
        torch.testing.assert_close(result[name], expected, rtol=2**-23, atol=1e-12)


ASKED = (
    ("What is the capital of France?", "Paris"),
    ("Name three fruits.", "1."),
    ("Who wrote Hamlet?", "Shakespeare"),
)


@pytest.mark.parametrize("which", ["base", *AGENTS, "merged"])
def test_text_stays_sensible_through_its_own_chat_template(which, merged):
    path = merged if which == "merged" else folder(which)
    engine = LocalEngine(path, device="cpu")
    assert engine.is_chat
    questions = [
        Question(str(i), "chat", "chat", said, "", None, 40) for i, (said, _) in enumerate(ASKED)
    ]
    together = dict(pair for batch in engine.answer(questions) for pair in batch)
    for question, (said, expected) in zip(questions, ASKED, strict=True):
        reply = together[question]
        assert reply.prompt.endswith(f"{said}<|im_end|>\n<|im_start|>assistant\n")
        assert expected in reply.text, (which, reply.text)
        assert "<|" not in reply.text
    # Alone, without the others' padding, the same.
    ((_, alone),) = next(engine.answer(questions[:1]))
    assert alone.text == together[questions[0]].text


SUITES = "tool,memory,code,math,instructions,health"
# A few of each: one core writes some 60 tokens a second, and some answers go on to their limit.
ITEMS = 5


def test_all_suites_end_and_easy_ones_are_not_all_wrong(merged, tmp_path):
    arguments = (
        *("evaluate", f"base={folder('base')}", f"merged={merged}", "--base", "base"),
        *("--suite", SUITES, "--limit", ITEMS, "--lengths", "1k", "--store", tmp_path / "store"),
    )
    report = ram_studio(*arguments)
    for model in report["models"].values():
        asked = {domain: row["n"] for domain, row in model["domains"].items()}
        # `tool` has questions that no function answers, as a domain of their own.
        asked["tool"] += asked.pop("irrelevance")
        assert asked == dict.fromkeys(SUITES.split(",")[:-1], ITEMS)
        domains = model["domains"]
        assert sum(domain["outcomes"]["failed"] for domain in domains.values()) == 0
        # It finds one number in a text and names fruits in a list; more is not asked of it.
        assert domains["memory"]["categories"]["needle 1000"]["correct"] > 0
        assert domains["instructions"]["summary"]["instruction_loose"] > 0
        health = model["health"]
        assert health["nonfinite_logits"] == 0
        assert health["warnings"] == []
        assert 10 < health["perplexity"] < 60
    kl = {name: model["health"]["kl_to_base"] for name, model in report["models"].items()}
    assert kl["base"] == pytest.approx(0, abs=1e-6)
    assert 1e-5 < kl["merged"] < 0.5
    # Everything is in the store: the same again gives the same, item for item.
    again = ram_studio(*arguments)
    for name, model in report["models"].items():
        assert again["models"][name]["domains"] == model["domains"], name
    assert again["comparisons"] == report["comparisons"]


@pytest.mark.parametrize("length", [1000, 8000, 128_000])
def test_long_prompts_are_measured_in_its_own_tokens(length):
    engine = LocalEngine(folder("base"), device="cpu")
    limit = 4 if length > 8000 else None
    for question in make(SuiteSettings(engine.count_tokens, lengths=(length,), limit=limit)):
        # What the model really gets, template and all, with room for the answer.
        tokens = engine.count_tokens(engine.prompt_of(question)) + MAX_NEW_TOKENS
        assert length - 60 < tokens <= length
        for word in question.spec["wanted"]:
            assert word in question.prompt
