"""Merging into a loaded model: the bytes of the written checkpoint, and the base back exactly."""

from __future__ import annotations

import pytest
import torch
from engine_zoo import EMBEDDING, HEAD, Zoo, read_folder
from random_zoo import write_zoo
from safetensors.torch import load_file, save_file

from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import load
from ram_studio.engine.events import CancelToken
from ram_studio.engine.in_memory import InMemoryMerger
from ram_studio.engine.merge import merge
from ram_studio.errors import CompatibilityError, SettingsError, Stopped
from ram_studio.evals.answering.load import load_model
from ram_studio.resources import asset_path

EXAMPLE = asset_path("independent")
AGENTS = {name: str(EXAMPLE / name) for name in ("coding", "tool", "memory")}
SETTINGS = [
    ("ram", {}),
    ("ram+", {"epsilon": 2e-5, "r": 0.2}),
    ("ram+s", {"epsilon": 1.234e-5}),
    ("ram+m", {}),
    ("ram+m", {"epsilon": 1.234e-5, "scope": "tensor"}),
    ("task-arithmetic", {"scale": 1.0}),
    ("ties", {}),
    ("ties", {"scope": "tensor"}),
    ("dare-ta", {"scale": 1.0}),
    ("dare-ties", {}),
    ("wudi", {"iterations": 2}),
]


def recipe_for(method: str = "ram+", agents: dict[str, str] | None = None, **fields):
    return make_recipe(
        {"base": str(EXAMPLE / "base"), "agents": agents or AGENTS, "method": method, **fields}
    )


@pytest.fixture(scope="module")
def example():
    model, _ = load_model(EXAMPLE / "base", "cpu")
    return model, InMemoryMerger(model, load(EXAMPLE / "base", AGENTS))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Zoo, torch.nn.Module, InMemoryMerger]:
    """A zoo, and a model of its base: methods need no more."""
    zoo = write_zoo(tmp_path_factory.mktemp("small"), 3)
    model = module_of(zoo.base)
    return zoo, model, InMemoryMerger(model, zoo.load())


def snapshot(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_holds(model, folder) -> None:
    """Fail unless a model's weights are a written checkpoint's."""
    for name, tensor in read_folder(folder).items():
        own = model.state_dict()[name]
        assert torch.equal(own.double(), tensor.double()), (folder.name, name)


@pytest.mark.parametrize(("method", "values"), SETTINGS)
def test_the_model_holds_what_would_have_been_written(method, values, small, tmp_path) -> None:
    zoo, model, merger = small
    before = snapshot(model)
    recipe = zoo.recipe(method=method, settings=values, seed=4)
    written = merge(recipe, tmp_path / "out")
    applied = merger.apply(recipe)
    assert_holds(model, tmp_path / "out")
    assert applied.agents == written.agents
    merger.restore()
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "fields", [{"rounding": "stochastic", "seed": 9}, {"dtype": "float32"}, {"dtype": "float16"}]
)
def test_a_loaded_model_may_store_the_merge_in_any_way(fields, example, tmp_path) -> None:
    model, merger = example
    recipe = recipe_for("ram+", **fields)
    merge(recipe, tmp_path / "out")
    merger.apply(recipe)
    assert_holds(model, tmp_path / "out")
    merger.restore()


def test_some_of_the_agents_in_another_order(small, tmp_path) -> None:
    zoo, model, merger = small
    agents = {name: str(zoo.agent_paths[name]) for name in ("memory", "coding")}
    for method in ("ram+", "ties"):
        recipe = zoo.recipe(method=method, agents=agents)
        merge(recipe, tmp_path / method)
        merger.apply(recipe)
        assert_holds(model, tmp_path / method)
    merger.restore()


def test_an_agents_own_weights(example) -> None:
    model, merger = example
    merger.apply_agent("tool")
    assert_holds(model, EXAMPLE / "tool")
    merger.restore()


def test_a_stopped_merge_leaves_the_base(example) -> None:
    model, merger = example
    before = snapshot(model)
    merger.apply(recipe_for("task-arithmetic", settings={"scale": 1.0}))
    assert not torch.equal(
        before["model.embed_tokens.weight"], model.state_dict()["model.embed_tokens.weight"]
    )
    merger.restore()
    token = CancelToken()
    merger = InMemoryMerger(model, load(EXAMPLE / "base", AGENTS), cancel=token)
    token.cancel()
    with pytest.raises(Stopped):
        merger.apply(recipe_for("ram+"))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_model_of_its_own_dtype_must_hold_the_output(tmp_path) -> None:
    zoo = write_zoo(tmp_path, 3)
    merger = InMemoryMerger(module_of(zoo.base), zoo.load())
    merger.apply(zoo.recipe())
    with pytest.raises(SettingsError, match="Load the model in float32"):
        merger.apply(zoo.recipe(dtype="float32"))


def test_a_tied_head_follows(tmp_path) -> None:
    zoo = write_zoo(tmp_path, 3, tied_twice=True)
    model = module_of({**zoo.base, HEAD: zoo.base[EMBEDDING]})
    merger = InMemoryMerger(model, zoo.load())
    recipe = zoo.recipe(method="dare-ties", rounding="stochastic")
    merge(recipe, tmp_path / "out")
    merger.apply(recipe)
    assert_holds(model, tmp_path / "out")


def test_a_model_that_is_not_the_base_is_refused(tmp_path) -> None:
    zoo = write_zoo(tmp_path, 3)
    for tensors, said in (
        (zoo.agents["tool"], "is not the base"),
        (dict(list(zoo.base.items())[1:]), "has no `"),
        ({name: tensor.reshape(-1, 4) for name, tensor in zoo.base.items()}, "has shape"),
    ):
        with pytest.raises(CompatibilityError, match=said):
            InMemoryMerger(module_of(tensors), zoo.load())


def test_buffers_that_libraries_compute_may_be_missing(tmp_path) -> None:
    zoo = write_zoo(tmp_path, 3)
    shard = next(zoo.base_path.glob("*.safetensors"))
    buffers = {
        "model.layers.0.self_attn.rotary_emb.cos_cached": torch.ones(2),
        "model.layers.0.attn.bias": torch.ones(1, 1, 4, 4),
        "embeddings.position_ids": torch.arange(4),
    }
    save_file({**load_file(shard), **buffers}, shard, {"format": "pt"})
    InMemoryMerger(module_of(zoo.base), zoo.load())


def test_unknown_agents_are_named(example) -> None:
    _, merger = example
    with pytest.raises(SettingsError, match="the agents loaded are coding, tool, memory"):
        merger.apply(recipe_for("ram+", {"search": "somewhere"}))


def module_of(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Return a module tree whose state dict has these names."""
    root = torch.nn.Module()
    made: dict[int, torch.nn.Parameter] = {}
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        parameter = made.setdefault(id(tensor), torch.nn.Parameter(tensor))
        module.register_parameter(leaf, parameter)
    return root


def test_more_agents_than_patterns_are_counted_for(tmp_path) -> None:
    names = tuple(f"agent{i}" for i in range(7))
    zoo = write_zoo(tmp_path, 4, agents=names)
    model = module_of(zoo.base)
    merger = InMemoryMerger(model, zoo.load())
    for number, chosen in enumerate((names, names[:3], names[::-1])):
        recipe = zoo.recipe(agents={name: str(zoo.agent_paths[name]) for name in chosen})
        merge(recipe, tmp_path / f"out{number}")
        merger.apply(recipe)
        assert_holds(model, tmp_path / f"out{number}")
