"""LoRA adapters as agents: what peft merges is what is read, and what is not read is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_zoo import run_command
from peft_experts import EXPERTS, STACKS, expert_model, train_experts
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig

from ram_studio.checkpoints.fit.cautions import cautions
from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.record.recipe import load_recipe, make_recipe, recipe_yaml
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import CompatibilityError, NonFiniteError, SettingsError

# peft asks transformers by a name that goes with its next major version.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers.:UserWarning"),
    # It says so of patterns for parameters too, which it applies.
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys:RuntimeWarning"),
]

CONFIG = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    tie_word_embeddings=False,
)
LINEAR = ["q_proj", "down_proj"]


def model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "base"
    model().save_pretrained(folder)
    return folder


def train(folder: Path, **options: object) -> dict[str, torch.Tensor]:
    """Save an adapter with random factors; return what peft makes of it and the base."""
    from peft import LoraConfig, get_peft_model

    made = get_peft_model(model(), LoraConfig(**{"r": 4, "target_modules": LINEAR, **options}))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(folder)
    return made.merge_and_unload().state_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """An adapter, and what peft makes of it and the base."""
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    return folder, train(folder)


def altered(
    adapter: Path, folder: Path, tensors: Mapping[str, torch.Tensor | None] = {}, **config: object
) -> Path:
    """Copy an adapter with other tensors (None takes one away) and other values in its config."""
    shutil.copytree(adapter, folder)
    weights, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    stored = {**load_file(weights), **tensors}
    save_file({n: t for n, t in stored.items() if t is not None}, weights, {"format": "pt"})
    settings.write_text(json.dumps(json.loads(settings.read_text()) | config))
    return folder


def read_all(base: Path, adapter: Path, **fit: str) -> dict[str, torch.Tensor]:
    report = check_compatibility(
        open_checkpoint(base, name="base"), [open_checkpoint(adapter, name="a")], **fit
    )
    found = {}
    with Sources(*report.checkpoints) as sources:
        for tensor in report.tensors:
            [own] = tensor.agents
            # In two pieces, to be the same wherever a block begins.
            middle = own.numel // 3
            parts = [
                sources.decoded(own, *span) for span in ((0, middle), (middle, own.numel - middle))
            ]
            found[tensor.name] = torch.cat([torch.from_numpy(p) for p in parts]).view(own.shape)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_alpha": 3, "use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 5}},
        {"use_dora": True},
        {"bias": "all", "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"trainable_token_indices": [39, 3, 7]},
        {"trainable_token_indices": {"lm_head": [5], "embed_tokens": [0, 1]}},
    ],
    ids=str,
)
def test_an_adapter_is_what_peft_merges(base, tmp_path, options):
    expected = train(tmp_path / "adapter", **options)
    found = read_all(base, tmp_path / "adapter")
    stored = load_file(base / "model.safetensors")
    assert any(not torch.equal(found[name], stored[name]) for name in stored)
    for name in stored:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_an_adapter_goes_through_a_merge_like_a_checkpoint(base, trained, tmp_path):
    adapter, expected = trained
    # Loops for three agents are compiled already.
    sources = {"base": str(base), "agents": {"a": str(adapter), "b": str(base), "c": str(base)}}
    recipe = make_recipe({**sources, "method": "task-arithmetic", "settings": {"scale": 1.0}})
    merge(recipe, tmp_path / "out")
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    assert verify(tmp_path / "out", with_sources=True, full=True).source_files == 4


def test_an_applied_adapter_is_a_whole_model(base, trained):
    report = load(base, {"a": trained[0]})
    again = check_compatibility(report.base, report.agents)
    assert again.tensors == report.tensors
    assert again.findings == report.findings


def test_its_rank_is_told_and_that_rounding_makes_its_sparsity(trained, tmp_path):
    base = tmp_path / "base"
    model().bfloat16().save_pretrained(base)
    report = load(base, {"a": trained[0], "b": base, "c": base})
    [said] = [f.text for f in report.findings if f.kind == "adapter"]
    assert "LoRA adapter of rank 4 on 4 of 21 tensors" in said
    assert "where they equal the base in BF16, rounding, not training, made them equal" in said
    assert not [f for f in report.findings if f.kind == "dtype"]
    assert analyze_report(report).rounded is not None  # densities are shown both ways


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "adapter of type IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa_niter_4"),
        ({"lora_bias": True}, "with lora_bias"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "with layer_replication"),
        ({"kasa_config": {"beta": 0.1}}, "with kasa_config"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "alpha_pattern that is not read"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(base, trained, tmp_path, change, said):
    adapter = altered(trained[0], tmp_path / "adapter", **change)
    with pytest.raises(CompatibilityError, match=said) as caught:
        load(base, {"a": adapter})
    assert "merge_and_unload" in str(caught.value)


def test_an_adapter_of_another_base_or_as_the_base_is_refused(base, trained, tmp_path):
    stored = load_file(base / "model.safetensors")
    narrow = {n: t[:, :8].contiguous() if t.ndim == 2 else t for n, t in stored.items()}
    save_file(narrow, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CompatibilityError, match=r"not an adapter of this base.*lora_A \(4, 16\)"):
        load(tmp_path, {"a": trained[0]})
    with pytest.raises(CompatibilityError, match=r"Base: .* is a LoRA adapter"):
        load(trained[0], {"a": base})


Q = "base_model.model.model.layers.0.self_attn.q_proj"
ROWS = {f"{Q}.lora_embedding_{x}": torch.ones(16, 16) for x in "AB"}
"""Factors of rows, where the adapter has others of the whole matrix."""


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({f"{Q}.lora_A.weight": (0, 16), f"{Q}.lora_B.weight": (16, 0)}, r"lora_A \(0, 16\)"),
        ({f"{Q}.lora_magnitude_vector.weight": (16,)}, "stored as F32 and F32 and I64"),
        ({f"{'a' * 400}.lora_{x}.weight": (4, 4) for x in "AB"}, "too long a name"),
        ({f"{Q}.lora_A.default.weight": (4, 16)}, r"of which only one can be read"),
        (
            {f"base_model.model.lm_head.{x}.weight": (40, 16) for x in ("original_module", "x")}
            | {"base_model.model.lm_head.modules_to_save.weight": (40, 16)},
            r"modules_to_save\.weight` and .*original_module\.weight`, of which only one",
        ),
    ],
)
def test_factors_that_cannot_be_are_refused(base, trained, tmp_path, tensors, said):
    """A rank of nothing, whole numbers for lengths, a name that patterns would take hours over.

    And a tensor twice, by the names of which one would be left out.
    """
    made = {n: torch.ones(shape, dtype=torch.float32) for n, shape in tensors.items()}
    made = {n: t.long() if "magnitude" in n else t for n, t in made.items()}
    adapter = altered(trained[0], tmp_path / "adapter", made, alpha_pattern={"a*a*a*b": 2})
    weights = load_file(base / "model.safetensors")
    long = {f"{'a' * 400}.weight": torch.ones(4, 4)}
    save_file(weights | long, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CompatibilityError, match=said) as caught:
        load(tmp_path, {"a": adapter})
    # peft itself reads some of what is not read here, as DoRA on GPT-2's layers.
    assert "save_pretrained" in str(caught.value)


@pytest.mark.parametrize("use_dora", [True, False])
def test_dora_goes_with_its_magnitudes(base, tmp_path, use_dora):
    """Without them it was read as plain LoRA, and no one was told."""
    train(tmp_path / "trained", use_dora=use_dora)
    adapter = altered(tmp_path / "trained", tmp_path / "adapter", use_dora=not use_dora)
    which = "a" if use_dora else "no"
    said = f"q_proj` has {which} magnitude_vector, and its config has use_dora {not use_dora}"
    with pytest.raises(CompatibilityError, match=said):
        load(base, {"a": adapter})
    both = altered(adapter, tmp_path / "both", ROWS)
    with pytest.raises(CompatibilityError, match="q_proj` has factors of two kinds"):
        load(base, {"a": both})


def test_an_update_too_large_is_told_without_warnings(base, trained, tmp_path):
    huge = {f"{Q}.lora_B.weight": torch.full((16, 4), 3e38)}
    adapter = altered(trained[0], tmp_path / "adapter", huge)
    with pytest.raises(NonFiniteError, match=r"q_proj\.weight` has \d+ NaN or Inf"):
        analyze_report(load(base, {"a": adapter, "b": base, "c": base}))


def test_a_tied_head_that_the_base_does_not_store_is_not_counted(base, trained):
    """Such adapters were told to be on 14 of 13 tensors."""
    report = load(base, {"a": trained[0]})
    agent = report.agents[0]
    made = next(t for t in agent.tensors.values() if t.virtual is not None)
    more = replace(agent, tensors={**agent.tensors, "not.in.the.base": made})
    said, again = (
        [finding.text for finding in cautions(report.base, [one]) if "adapter" in finding.text]
        for one in (agent, more)
    )
    assert said == again


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=5), {}),
        (Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=4), {"use_rslora": True}),
        (
            Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=24, num_experts=3),
            {"target_parameters": STACKS[:1], "alpha_pattern": {"experts.gate_up_proj": 2}},
        ),
        (GptOssConfig(**EXPERTS, intermediate_size=16, num_local_experts=3), {}),
    ],
    ids=["square gate", "rank-stabilised", "one stack", "stored the other way round"],
)
def test_an_adapter_of_experts_is_what_peft_merges(tmp_path, config, options):
    """Of bases that store experts one by one (Qwen3) and in stacks, (in, out) each (gpt-oss)."""
    expected = train_experts(tmp_path, config, **options)
    stored = load_file(tmp_path / "base" / "model.safetensors")
    changed = {n for n in stored if not torch.equal(expected[n], stored[n])}
    assert any("experts" in name for name in changed)
    found = read_all(tmp_path / "base", tmp_path / "adapter", experts_packing="rank-major")
    assert found.keys() == stored.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(tensor, stored[name]) or name in changed


def test_the_order_of_expert_columns_is_asked_if_unknown(tmp_path):
    config = Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=4)
    expected = train_experts(tmp_path, config)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    with pytest.raises(CompatibilityError, match="set experts_packing: rank-major") as refused:
        load(base, {"a": adapter})
    # What the message says of both orders, by plain products.
    norms = re.findall(r"(\S+-major) it has norm (\S+) and leaves (\d) of 4", str(refused.value))
    stored = load_file(adapter / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.experts"
    [a, b] = (stored[f"{name}.base_layer.lora_{x}.weight"].double() for x in "AB")
    if a.shape[1] != 16:  # gate_up_proj reads what is hidden
        [a, b] = (stored[f"{name}.lora_{x}.weight"].double() for x in "AB")
    rows = [list(range(3 * e, 3 * e + 3)) for e in range(4)]
    columns = {"rank-major": [[e, e + 4, e + 8] for e in range(4)], "expert-major": rows}
    assert [order for order, _, _ in norms] == [*columns]
    for order, norm, still in norms:
        parts = [b[:, c] @ a[r] for r, c in zip(rows, columns[order], strict=True)]
        true = 5 / 3 * sum(part.square().sum() for part in parts).sqrt()
        assert float(norm) == pytest.approx(float(true), rel=1e-3)
        assert still == "0"

    # As Unsloth had it: the same update with the columns in the other order.
    other = shutil.copytree(adapter, tmp_path / "other")
    turned = [e * 3 + r for r in range(3) for e in range(4)]
    back = torch.tensor([turned.index(k) for k in range(12)])
    for stored_name in stored:
        if "experts" in stored_name and "lora_B" in stored_name:
            stored[stored_name] = stored[stored_name][:, back].contiguous()
    save_file(stored, other / "adapter_model.safetensors", {"format": "pt"})
    path = other / "adapter_config.json"
    plain = json.loads(path.read_text())
    for said, asked in ((None, "expert-major"), ("grouped_by_expert", "ask")):
        path.write_text(json.dumps(plain | {"lora_B_layout": said}))
        found = read_all(base, other, experts_packing=asked)
        for tensor_name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[tensor_name], rtol=1e-5, atol=1e-6)
    wrong = load(base, {"a": adapter}, experts_packing="expert-major").agents[0]
    right = load(base, {"a": adapter}, experts_packing="rank-major")
    assert wrong.fingerprint != right.agents[0].fingerprint
    [said] = [f.text for f in right.findings if f.kind == "adapter"]
    assert "rank 3 on 26 of" in said  # 2 q_proj, 2 layers of 4 experts of 3 matrices


STACK = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture
def orders(tmp_path: Path) -> dict[str, Path]:
    """A stack of 3 experts, and the same LoRA of rank 2 on it in both orders."""
    random = torch.Generator().manual_seed(5)
    left = torch.randn(8, 2, 3, generator=random)  # (out, rank, expert)
    right = torch.randn(6, 4, generator=random)
    name = "base_model.model.model.layers.0.mlp.experts.lora_"
    embedding = {"model.embed_tokens.weight": torch.ones(900, 40)}
    models = {
        "base": {STACK: torch.ones(3, 8, 4), **embedding},
        "peft": {f"{name}A.weight": right, f"{name}B.weight": left.reshape(8, 6)},
        "unsloth": {f"{name}A.weight": right, f"{name}B.weight": left.mT.reshape(8, 6)},
    }
    config = {"peft_type": "LORA", "r": 2, "target_parameters": ["experts.gate_up_proj"]}
    for folder, tensors in models.items():
        file = "model" if folder == "base" else "adapter_model"
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / f"{file}.safetensors", {"format": "pt"})
        if folder != "base":
            (tmp_path / folder / "adapter_config.json").write_text(json.dumps(config))
    return {folder: tmp_path / folder for folder in models}


OWN = {"peft": "rank-major", "unsloth": "expert-major"}


def test_each_agent_may_have_its_own_column_order(orders, tmp_path):
    agents, base = {name: orders[name] for name in OWN}, str(orders["base"])
    three = {**{name: str(path) for name, path in agents.items()}, "still": base}
    asked = {"base": base, "agents": three}
    asked |= {"method": "task-arithmetic", "settings": {"scale": 1}, "experts_packing": OWN}
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(make_recipe(asked)))
    merge(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "merged")
    alone = {"agents": {**three, "unsloth": base}, "experts_packing": OWN["peft"]}
    merge(make_recipe(asked | alone), tmp_path / "single")
    both, one = (load_file(tmp_path / n / "model.safetensors")[STACK] for n in ("merged", "single"))
    torch.testing.assert_close(both - 1, 2 * (one - 1))
    report = load(orders["base"], agents, experts_packing=OWN)
    assert report.of_agents(["unsloth"], report.policies).agents[0].name == "unsloth"
    with pytest.raises(CompatibilityError, match=r"recipe, or --experts-packing unsloth=ORDER"):
        load(orders["base"], agents, experts_packing={"peft": "rank-major"})
    with pytest.raises(
        SettingsError, match="experts_packing: no agent is named 'pefd'; the agents"
    ):
        load(orders["base"], agents, experts_packing={"pefd": "rank-major"})
    with pytest.raises(SettingsError, match="experts_packing of peft is 'x'; expected ask or"):
        load(orders["base"], agents, experts_packing={"peft": "x"})
    with pytest.raises(
        SettingsError, match="experts_packing: no agent is named 'pefd'; the agents"
    ):
        make_recipe(asked | {"experts_packing": {"pefd": "rank-major"}})


def test_commands_take_a_column_order_by_agent(orders, tmp_path):
    base, peft, unsloth = map(str, orders.values())
    agents = [f"--agent=peft={peft}", f"--agent=unsloth={unsloth}", f"--agent=still={base}"]
    packing = [f"--experts-packing={name}={order}" for name, order in OWN.items()]
    delta = ["--out", str(tmp_path / "a.safetensors"), "--experts-packing", "expert-major"]
    own = ["--experts-packing=model=expert-major", "--experts-packing=adapter=rank-major"]
    out = ["--method", "task-arithmetic", "--out", str(tmp_path / "merged")]
    told = {}
    for words in (
        ["inspect", f"--base={base}", *agents, *packing],
        ["merge", f"--base={base}", *agents, *packing, *out],
        ["delta", "make", base, unsloth, *delta],
        ["diff", base, unsloth, "--adapter", peft, *own, "--json"],
    ):
        told[words[0]] = run_command(*words)
    assert json.loads(told["diff"])["total"]["carried"] == pytest.approx(1)
    as_model = check_compatibility(
        open_checkpoint(base, name="base"), [open_checkpoint(tmp_path / "a.safetensors", name="a")]
    )
    with Sources(*as_model.checkpoints) as sources:
        [stack] = [t.agents[0] for t in as_model.tensors if t.name == STACK]
        found = torch.from_numpy(sources.decoded(stack, 0, stack.numel)).view(3, 8, 4)
    expected = read_all(Path(base), Path(peft), experts_packing="rank-major")[STACK]
    torch.testing.assert_close(found, expected)


def test_a_column_order_of_any_kind_is_read(orders):
    path = orders["peft"] / "adapter_config.json"
    plain = json.loads(path.read_text())
    for said in (["rank_major"], {}, 3, "other"):
        path.write_text(json.dumps(plain | {"lora_B_layout": said}))
        with pytest.raises(CompatibilityError, match="set experts_packing: rank-major"):
            load(orders["base"], {"a": orders["peft"]})


def test_factors_that_fit_no_stack_are_refused(tmp_path):
    config = Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=4)
    train_experts(tmp_path, config)
    other = Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=5)
    expert_model(other).save_pretrained(tmp_path / "five")
    with pytest.raises(CompatibilityError, match=r"lora_A \(12, .*fit none of its tensors"):
        load(tmp_path / "five", {"a": tmp_path / "adapter"}, experts_packing="rank-major")


def test_rows_that_are_not_there_are_refused(base, tmp_path):
    train(tmp_path / "trained", trainable_token_indices=[3])
    adapter = altered(tmp_path / "trained", tmp_path / "adapter", trainable_token_indices=[40])
    with pytest.raises(CompatibilityError, match="that trainable_token_indices does not name"):
        load(base, {"a": adapter})


def test_a_row_that_is_named_twice_is_refused(base, tmp_path):
    """The later values won in silence."""
    train(tmp_path / "trained", trainable_token_indices=[3, 7])
    adapter = altered(tmp_path / "trained", tmp_path / "adapter", trainable_token_indices=[3, 3])
    with pytest.raises(CompatibilityError, match="two values for one row"):
        load(base, {"a": adapter})


@pytest.mark.parametrize("lost", ["A", "B", "embedding_A", "embedding_B"])
def test_three_factors_of_two_kinds_are_refused(base, trained, tmp_path, lost):
    name = f"{Q}.lora_{lost}" + (".weight" if len(lost) == 1 else "")
    adapter = altered(trained[0], tmp_path / "adapter", {**ROWS, name: None})
    with pytest.raises(CompatibilityError, match="q_proj` has factors of two kinds"):
        load(base, {"a": adapter})
