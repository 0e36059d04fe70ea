"""Writes mergekit.json: what mergekit 0.1.5 makes of the golden checkpoints.

    pip install --no-deps --target /tmp/mergekit mergekit==0.1.5 immutables
    PYTHONPATH=.:/tmp/mergekit python tests/golden/make_mergekit.py

With a folder as its argument: runs the configurations in ``configs.json`` there, each into a folder
that is called by its number.

mergekit is a program under the LGPL that nothing here needs; only its results are kept. It draws
what DARE drops from torch's generator: for the comparison those draws are replaced by the hashed
ones, computed from their definition.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "methods")]

import method_reference  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from ram_studio.checkpoints.record.mergekit import export_mergekit  # noqa: E402
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe  # noqa: E402

AGENTS = ("coding", "tool", "memory")
SEED = 3
CONFIG = {"model_type": "qwen2", "architectures": ["Golden"], "tie_word_embeddings": False}
CONFIG |= {"num_hidden_layers": 2}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ram", {}),
    ("ram+", {"scope": "tensor", "alpha": 2.0}),
    ("ram+", {"scope": "tensor", "alpha": 0.2, "r": 0.3, "epsilon": 1e-4}),
    ("task-arithmetic", {}),
    ("task-arithmetic", {"scale": 0.7}),
    ("dare-ta", {"drop_rate": 0.4, "scale": 0.8}),
    ("ties", {"scope": "tensor", "density": 0.2, "scale": 0.7}),
    ("dare-ties", {"drop_rate": 0.4, "density": 1.0, "scale": 0.8}),
]


WEIGHTED: list[tuple[str, dict[str, Any]]] = [
    ("linear", {"base_weight": 0.3}),
    ("task-arithmetic", {"scale": 1.0}),
    ("task-arithmetic", {"scale": 1.0, "normalize": True}),
    ("ties", {"scope": "tensor", "density": 0.3}),
    ("ties", {"scope": "tensor", "density": 0.3, "normalize": False}),
]
WEIGHTS = {"coding": 0.7, "tool": [0.2, 0.9], "memory": -0.4}
FILTERS = [{"match": "*mlp*", "weights": {"memory": 1.5, "coding": 0.25}}]


def recipe_in(
    folder: str, method: str, settings: dict[str, Any], *, is_weighted: bool = False
) -> Recipe:
    """Return the recipe of a merge of the checkpoints in a folder."""
    sources = {"base": f"{folder}/base", "agents": {name: f"{folder}/{name}" for name in AGENTS}}
    how = {"method": method, "settings": settings, "dtype": "float32", "seed": SEED}
    own = {"weights": WEIGHTS, "filters": FILTERS} if is_weighted else {}
    return make_recipe({**sources, **how, **own})


def config_of(method: str, settings: dict[str, Any], *, is_weighted: bool = False) -> Any:
    """Return mergekit's configuration of a merge, as RAM Studio writes it."""
    text, _ = export_mergekit(recipe_in(".", method, settings, is_weighted=is_weighted))
    return yaml.safe_load(text)


def run_all(configs: list[Any]) -> None:
    """Merge with mergekit, each configuration into a folder here called by its number."""
    from mergekit import sparsify
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.merge_methods.generalized_task_arithmetic import GeneralizedTaskArithmeticMerge
    from mergekit.options import MergeOptions

    state: dict[str, Any] = {}
    original = GeneralizedTaskArithmeticMerge.merge_group

    def merge_group(self, group, /, **parameters):
        names = [Path(str(entry.id.model)).name for entry in group.non_base]
        state.update(tensor=group.metadata.name, agents=iter(names))
        return original(self, group, **parameters)

    def bernoulli(tensor, density, rescale_norm=None):
        where = SEED, next(state["agents"]), state["tensor"]
        drops = (method_reference.is_dropped(*where, i, 1 - density) for i in range(tensor.numel()))
        kept = torch.tensor([not dropped for dropped in drops]).view(tensor.shape)
        return sparsify.rescaled_masked_tensor(tensor, kept.to(tensor.dtype), rescale_norm)

    GeneralizedTaskArithmeticMerge.merge_group = merge_group
    sparsify.bernoulli = bernoulli
    for number, config in enumerate(configs):
        # There are no tokenizers here, of which it would cut the embeddings.
        own = MergeConfiguration.model_validate({**config, "tokenizer_source": None})
        run_merge(own, str(number), MergeOptions(quiet=True))


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("base", *AGENTS):  # of no architecture that it knows tensors of
            shutil.copytree(HERE / name, name)
            Path(name, "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        cases = [(*case, False) for case in CASES] + [(*case, True) for case in WEIGHTED]
        configs = [config_of(m, own, is_weighted=weighted) for m, own, weighted in cases]
        run_all(configs)
        for number, (config, (method, settings, is_weighted)) in enumerate(
            zip(configs, cases, strict=True)
        ):
            merged = load_file(Path(str(number), "model.safetensors"))
            values = {name: tensor.flatten().tolist() for name, tensor in sorted(merged.items())}
            told = {"method": method, "settings": settings, "config": config}
            told |= {"is_weighted": True} if is_weighted else {}
            found.append({**told, "merged": values})
    (HERE / "mergekit.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
        run_all(json.loads(Path("configs.json").read_text(encoding="utf-8")))
    else:
        main()
