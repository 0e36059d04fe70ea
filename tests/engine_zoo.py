"""Real checkpoints with known contents: safetensors folders, and the same numbers as Python lists.

Every tensor shape that breaks naive code is in them: none and one element, no dimension, odd
sizes, integers; every overlap count from 0 to all agents occurs in every larger tensor.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.url_folder import UrlFolder
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.cli.main import commands
from ram_studio.engine.analyze import analyze, load
from ram_studio.engine.reading.fisher_files import FORMAT, fisher_path

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_INTEGER = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}

Tensors = dict[str, torch.Tensor]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
SHAPES = {
    EMBEDDING: (17, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.bias": (7,),
    "model.layers.0.mlp.up_proj.weight": (9, 13),
    "model.layers.1.mlp.up_proj.weight": (13, 9),
    "model.layers.1.mlp.gate": (),
    "model.layers.1.mlp.empty": (0, 4),
    "model.layers.1.input_layernorm.weight": (1,),
    "model.norm.weight": (8,),
    HEAD: (17, 8),
}
COPIED = {
    "model.positions": torch.arange(11),
    "model.flags": torch.tensor([True, False, True]),
}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return bit patterns (tells -0.0 from 0.0); integers and booleans as they are."""
    return tensor.view(_INTEGER[tensor.dtype]) if tensor.dtype in _INTEGER else tensor


def values_of(tensor: torch.Tensor) -> list[float]:
    return tensor.double().flatten().tolist()


def _moved(tensor: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the numbers that many places of the last digit further from zero."""
    return (tensor.view(_INTEGER[tensor.dtype]) + steps).view(tensor.dtype)


def base_tensor(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    flat = (torch.randn(shape, generator=rng) * 0.05).to(dtype).flatten()
    if len(flat) >= 8:  # zeros of both signs, a denormal, a large number, and ones beside them
        flat[:5] = torch.tensor([0.0, -0.0, torch.finfo(dtype).smallest_normal / 4, 1000.0, -1.0])
    return flat.reshape(shape)


def changed_by_rank(
    base: torch.Tensor, agents: int, reach: int, rng: torch.Generator
) -> list[torch.Tensor]:
    """Return each agent's tensor: every overlap count in turn, and 1 more often in some tensors.

    Changes are of 1 to ``reach`` units in the last place. Ratios differ by agent and tensor.
    """
    flat = base.flatten()
    counts = [*range(agents + 1), *[1] * int(torch.randint(0, 12, (), generator=rng))]
    keys = torch.rand((agents, len(flat)), generator=rng)
    keys *= torch.linspace(0.5, 1.0, agents)[:, None]  # the first agents change more
    rank = keys.argsort(0).argsort(0)
    changed = rank < torch.tensor(counts)[torch.arange(len(flat)) % len(counts)]
    result = []
    for t in range(agents):
        sign = torch.randint(0, 2, (len(flat),), generator=rng) * 2 - 1
        steps = torch.randint(1, reach + 1, (len(flat),), generator=rng) * sign
        steps = torch.where(flat.abs() < 1e-3, steps.abs(), steps)  # never through zero
        new = _moved(flat, steps.to(_INTEGER[base.dtype]))
        result.append(torch.where(changed[t], new, flat).reshape(base.shape))
    return result


def write_folder(
    folder: Path, tensors: Mapping[str, torch.Tensor], *, shards: int = 1, tied: bool | None = False
) -> Path:
    """Write a checkpoint of that many shards; ``tied`` is what config.json says."""
    write_shards(folder, tensors, shards)
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    if tied is not None:
        config["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_shards(
    folder: Path, tensors: Mapping[str, torch.Tensor], shards: int = 1, *, index: bool = True
) -> None:
    """Write tensors into files of about the same number of tensors, and which is in which."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = "model.safetensors"
        if shards > 1:
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file({n: tensors[n].contiguous() for n in part}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if shards > 1 and index:
        written = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(written))


def read_folder(folder: Path) -> Tensors:
    """Return all tensors of a checkpoint, read by the safetensors library."""
    tensors: Tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file's bytes by its path inside the folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def weights_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a folder's safetensors files."""
    return {name: data for name, data in contents(folder).items() if name.endswith(".safetensors")}


def contents_at(url: str) -> dict[str, bytes]:
    """Return every file's bytes below a URL."""
    folder = UrlFolder.of(url)
    return {name: folder.fetch(name, 0, size) for name, size in folder.sizes().items()}


def model_options(recipe: Recipe) -> list[str]:
    """Return the options of the command line that name a recipe's models."""
    return [f"--base={recipe.base}", *(f"--agent={n}={s}" for n, s in recipe.agents.items())]


def run_command(*words: object) -> str:
    """Return what a command prints, which ends well."""
    done = CliRunner().invoke(commands, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@dataclass(frozen=True)
class Zoo:
    """A base and its agents, on disk and in memory (as they count: common rows cut, ...)."""

    folder: Path
    base: Tensors
    agents: dict[str, Tensors]
    counted: tuple[str, ...]

    @classmethod
    def write(
        cls,
        folder: Path,
        base: Tensors,
        agents: dict[str, Tensors],
        counted: Sequence[str] | None = None,
        *,
        tied: bool = False,
    ) -> Zoo:
        """Write a zoo of these tensors, of which all are counted by default."""
        for name, tensors in {"base": base, **agents}.items():
            write_folder(folder / name, tensors, tied=tied)
        return cls(folder, base, agents, tuple(base if counted is None else counted))

    @property
    def base_path(self) -> Path:
        return self.folder / "base"

    @property
    def agent_paths(self) -> dict[str, Path]:
        return {name: self.folder / name for name in self.agents}

    def recipe(self, **changes: object) -> Recipe:
        sources = {name: str(path) for name, path in self.agent_paths.items()}
        return make_recipe({"base": str(self.base_path), "agents": sources, **changes})

    def load(self, **options: Any) -> CompatibilityReport:
        return load(self.base_path, self.agent_paths, **options)

    def analyze(self, **options: Any) -> Analysis:
        return analyze(self.base_path, self.agent_paths, **options)

    def values(self, name: str) -> tuple[list[float], list[list[float]]]:
        """Return one tensor's elements: of the base, and of each agent."""
        return values_of(self.base[name]), [values_of(a[name]) for a in self.agents.values()]

    def counts(self, epsilon: float) -> dict[str, list[int]]:
        """Return the plain pattern counts of every counted tensor."""
        return {n: reference.pattern_counts(*self.values(n), epsilon) for n in self.counted}

    def overlap(self, epsilon: float, tensors: Sequence[str] | None = None) -> list[list[int]]:
        """Return per agent the elements shared with exactly 0, 1, ... others, in these tensors."""
        by_tensor = self.counts(epsilon)
        total = reference.add_counts(by_tensor[n] for n in tensors or self.counted)
        return reference.shared_counts(total, len(self.agents))

    def ratios(self, epsilon: float, tensors: Sequence[str] | None = None) -> list[float]:
        return [reference.ratio(row) for row in self.overlap(epsilon, tensors)]

    def factors(
        self, rule: str = "ram+", r: float = 0.1, alpha: float = 2.0, epsilon: float = 1e-5
    ) -> list[float]:
        return [reference.scaling(rho, rule, r, alpha) for rho in self.ratios(epsilon)]


def make_zoo(
    folder: Path,
    agents: int = 2,
    *,
    dtype: str = "BF16",
    agent_dtypes: Sequence[str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    shards: int = 1,
    reach: int | None = None,
    seed: int = 0,
    copied: bool = True,
) -> Zoo:
    """Write a zoo.

    Args:
        agent_dtypes: the dtype each agent is stored in; one in another dtype than the base starts
            from the base's numbers in its own dtype.
        reach: largest change in units of the last place; by default such that changes lie on both
            sides of 1e-5.
    """
    reach = reach or (1 << 18 if dtype == "F32" else 24)
    rng = torch.Generator().manual_seed(seed)
    base: Tensors = {}
    stored: dict[str, Tensors] = {f"agent{t}": {} for t in range(agents)}
    dtypes = list(agent_dtypes or [dtype] * agents)
    for name, shape in shapes.items():
        base[name] = base_tensor(shape, DTYPES[dtype], rng)
        for t, new in enumerate(changed_by_rank(base[name], agents, reach, rng)):
            other = new.to(DTYPES[dtypes[t]])
            if dtypes[t] != dtype:  # noise below the base's last digit, as training leaves it
                other = other + (torch.rand(shape, generator=rng) * 1e-4).to(other.dtype)
            stored[f"agent{t}"][name] = other.reshape(shape)
    if copied:
        for tensors in (base, *stored.values()):
            tensors |= COPIED
    write_folder(folder / "base", base, shards=shards)
    for number, (name, tensors) in enumerate(stored.items()):
        # Agents are cut into other shards than the base.
        write_folder(folder / name, tensors, shards=1 if number % 2 else shards)
    counted = sorted((n for n in base if n not in COPIED), key=list(base).index)
    return Zoo(folder, base, stored, tuple(counted))


ODD = {
    "fewer rows": {"rows": "common"},
    "more rows": {"rows": "common"},
    "a tensor missing, another extra": {"missing": "keep-base", "extra": "ignore"},
}
"""Agents whose tensors are not all the base's, and how they are to be read."""
LOST = "model.layers.0.mlp.up_proj.weight"
EXTRA = "model.layers.9.extra.weight"


def make_odd_zoo(folder: Path, odd: str, **options: object) -> Zoo:
    """Write a zoo whose first agent is odd; return it as it counts: what is not there is the base.

    options: of ``make_zoo``.
    """
    made = make_zoo(folder / "made", 3, **options)
    own = dict(made.agents["agent0"])
    if odd == "a tensor missing, another extra":
        del own[LOST]
        own[EXTRA] = torch.ones(5)
    else:
        for name in {EMBEDDING, HEAD} & own.keys():
            more = torch.full((3, own[name].shape[1]), 9.0, dtype=own[name].dtype)
            own[name] = torch.cat([own[name], more]) if odd == "more rows" else own[name][:-4]
    stored = {"base": made.base, **made.agents, "agent0": own}
    for name, tensors in stored.items():
        write_folder(folder / "zoo" / name, tensors)
    seen = {}
    for name, x in made.base.items():
        y = own.get(name, x)
        seen[name] = torch.cat([y, x[len(y) :].to(y.dtype)])[: len(x)] if x.dim() else y
    return Zoo(folder / "zoo", made.base, {**made.agents, "agent0": seen}, made.counted)


@contextlib.contextmanager
def refused(
    error: type[BaseException], out: Path, match: str | None = None
) -> Iterator[pytest.ExceptionInfo]:
    """Expect an error, and that it leaves neither an output nor anything beside it."""
    before = set(out.parent.iterdir())
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert not out.exists()
    assert set(out.parent.iterdir()) == before


def write_fisher_files(
    zoo: Zoo, folder: Path, seed: int = 0, aliases: Mapping[str, str] | None = None
) -> Path:
    """Write a Fisher file of every agent of a zoo; return the folder.

    aliases: names of tensors that go by another's, and are not in the files.
    """
    folder.mkdir(exist_ok=True)
    rng = torch.Generator().manual_seed(seed)
    for name, path in zoo.agent_paths.items():
        weights = {
            key: torch.rand(tensor.shape, generator=rng)
            for key, tensor in zoo.agents[name].items()
            if tensor.is_floating_point() and key not in (aliases or {})
        }
        metadata = {"format": FORMAT, "fingerprint": open_checkpoint(path, name=name).fingerprint}
        if aliases:
            metadata["aliases"] = json.dumps(aliases)
        save_file(weights, fisher_path(folder, name), metadata)
    return folder
