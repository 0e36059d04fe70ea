"""Runs in mergekit's own environment: merge CONFIG into OUT, dropping what RAM Studio would drop.

    python run_mergekit.py CONFIG OUT SEED NAME [NAME ...]

mergekit draws its masks from torch's generator; for the comparison they are replaced by the hashed
ones, computed here from their definition. NAMES are the agents, in the order of the configuration.
"""

import hashlib
import sys

import numpy as np
import torch
import yaml

CONFIG, OUT, SEED, *NAMES = sys.argv[1:]


def kept(agent: str, tensor: str, n: int, density: float) -> torch.Tensor:
    digest = hashlib.blake2b(f"{SEED}\0dare:{agent}\0{tensor}".encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        key = np.uint64(int.from_bytes(digest, "little"))
        z = key + np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    share = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return torch.from_numpy(share >= 1.0 - density)


def main() -> None:
    from mergekit import sparsify
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.merge_methods.generalized_task_arithmetic import GeneralizedTaskArithmeticMerge
    from mergekit.options import MergeOptions

    state = {}
    original = GeneralizedTaskArithmeticMerge.merge_group

    def merge_group(self, group, /, **parameters):
        state.update(tensor=group.metadata.name, position=0)
        return original(self, group, **parameters)

    def bernoulli(tensor, density, rescale_norm=None):
        agent = NAMES[state["position"]]
        state["position"] += 1
        mask = kept(agent, state["tensor"], tensor.numel(), density).view(tensor.shape)
        return sparsify.rescaled_masked_tensor(tensor, mask.to(tensor.dtype), rescale_norm)

    GeneralizedTaskArithmeticMerge.merge_group = merge_group
    sparsify.bernoulli = bernoulli
    with open(CONFIG, encoding="utf-8") as file:
        config = MergeConfiguration.model_validate(yaml.safe_load(file))
    run_merge(config, OUT, MergeOptions(quiet=True))


main()
