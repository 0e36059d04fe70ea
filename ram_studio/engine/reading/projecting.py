"""The share of each agent's update in the base's own directions: `project`'s meter."""

from __future__ import annotations

import importlib.util

from ram_studio.algorithm.methods.whole.matrices import is_linear
from ram_studio.algorithm.methods.whole.project import ProjectSettings, projected, strongest
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.reading.devices import one_torch_thread
from ram_studio.engine.reading.sources import Sources

MOST_WORK = 2e9
"""Sum over matrices of rows * columns * the smaller one: a few seconds."""


def removed_shares(report: CompatibilityReport) -> dict[str, float | None] | None:
    """Return by agent the share of its update that `project` on this agent alone would remove.

        1 - sum of <P(tau), tau> / sum of |tau|^2       over the linear layers

    None where an agent changed no linear layer; None for all where the files are not on this
    disk, PyTorch is missing, or the matrices need more than MOST_WORK.

    Raises: CheckpointError, SourceChangedError.
    """
    settings = ProjectSettings()
    linear = [t for t in report.counted if is_linear(settings, t.merged_as, t.shape)]
    work = sum(t.numel * min(t.shape[-2:]) for t in linear) * (1 + len(report.agents))
    if not report.is_local or importlib.util.find_spec("torch") is None or work > MOST_WORK:
        return None
    importlib.import_module("torch")  # for `one_torch_thread`
    sums = [(0.0, 0.0)] * len(report.agents)
    with Sources(*report.checkpoints, read_ahead=False) as sources, one_torch_thread("cpu"):
        for tensor in linear:
            for t, own in enumerate(_sums(sources, tensor, settings)):
                sums[t] = (sums[t][0] + own[0], sums[t][1] + own[1])
    shares = [1.0 - inside / norm2 if norm2 else None for inside, norm2 in sums]
    return dict(zip((agent.name for agent in report.agents), shares, strict=True))


def _sums(
    sources: Sources, tensor: MergeTensor, settings: ProjectSettings
) -> list[tuple[float, float]]:
    """Return <P(tau), tau> and |tau|^2 of each agent, summed over a tensor's matrices."""
    import torch

    rows, columns = tensor.shape[-2:]
    size = rows * columns
    found = [(0.0, 0.0)] * len(tensor.agents)
    for start in range(0, tensor.numel, size) if size else ():
        base, *agents = (
            torch.from_numpy(sources.decoded(one, start, size)).double().view(rows, columns)
            for one in (tensor.base, *tensor.agents)
        )
        directions = strongest(base, settings.base_rank)
        for t, agent in enumerate(agents):
            tau = agent - base
            norm2 = float((tau * tau).sum())
            inside = 0.0
            if norm2:
                inside = float((projected(tau, directions, settings.density) * tau).sum())
            found[t] = (found[t][0] + inside, found[t][1] + norm2)
    return found
