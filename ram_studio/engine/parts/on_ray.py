"""A merge's parts as tasks of Ray. Analyses go through its object store, weights never do."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import Need
from ram_studio.algorithm.partial import add_partial
from ram_studio.checkpoints.read.describe import plural
from ram_studio.checkpoints.read.url_folder import is_url
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output import DEFAULT_MAX_SHARD_BYTES
from ram_studio.checkpoints.write.output_folder import absolute, nearest_folder
from ram_studio.engine.events import CancelToken, Progress
from ram_studio.engine.job import MergeJob
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import divisible_job, memory_of_parts, plan_of
from ram_studio.engine.parts.ray_cluster import (
    alive_nodes,
    check_room,
    check_visible,
    connect_ray,
    cores_of_a_node,
    gather,
    task_options,
)
from ram_studio.engine.parts.steps import PartResult, analyze_part, merge_part
from ram_studio.engine.passes.driver import RunKeywords
from ram_studio.engine.result import MergeResult

PARTS_PER_NODE = 4
"""Small parts, so that early finished nodes and restarted parts waste little time."""

_REPORT_SECONDS = 0.5
_LOG = logging.getLogger(__name__)


def analyze_on_ray(
    recipe: Recipe,
    address: str,
    run: RunKeywords,
    *,
    relations: bool = True,
) -> Analysis:
    """Return the analysis of a recipe's checkpoints, counted in parts on Ray; see ``analyze``.

    Args: address: of a cluster, or "local"; run: see RunKeywords; a GPU is used only if named.

    Raises: SettingsError when Ray is not found; what ``analyze_part`` raises.
    """
    recipe = recipe.model_copy(update={"other_base": "accept"})  # an analysis does no harm
    with connect_ray(address) as ray:
        parts = PARTS_PER_NODE * alive_nodes(ray)
        job = divisible_job(recipe, cancel=run.get("cancel"))
        check_visible(ray, _local_paths(recipe))
        # These shards are never written: four per part, to balance the parts.
        whole = plan_of(job, 1, max_shard_bytes=DEFAULT_MAX_SHARD_BYTES, hash_sources=False)
        size = max(1, whole.parts[0].nbytes // (4 * parts))
        plan = plan_of(job, parts, max_shard_bytes=size, hash_sources=False)
        return _analysis(_Cluster(ray, job, plan, run), relations)


def merge_on_ray(
    recipe: Recipe,
    out: str | Path,
    address: str,
    run: RunKeywords,
    *,
    analysis: Analysis | None = None,
    parts: int | None = None,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    hash_sources: bool = True,
) -> MergeResult:
    """Merge in parts on Ray to a folder that all nodes see, or a URL; see ``merge_part``.

    After a failure or a stop, finished parts stay there and are not merged again.

    Args: address: of a cluster, or "local"; parts: by default one for each file of the output; the
    others as for ``merge``.

    Raises: SettingsError when Ray is not found; what ``merge_part`` and ``finish`` raise.
    """
    start = time.monotonic()
    out = str(out) if is_url(out) else str(absolute(out))
    with connect_ray(address) as ray:
        job = divisible_job(recipe, cancel=run.get("cancel"))
        with _put_mark(out) as mark:
            check_visible(ray, [*_local_paths(recipe), *mark])
        plan = plan_of(job, parts, max_shard_bytes=max_shard_bytes, hash_sources=hash_sources)
        cluster = _Cluster(ray, job, plan, run)
        if analysis is None and job.needs & {Need.RATIOS, Need.MAGNITUDES}:
            analysis = _analysis(cluster, relations=Need.MAGNITUDE_RATIOS in job.needs)
        done = _on_parts(cluster, "merge", _merge, out, ray.put(analysis))
        if there := sum(part.is_done_before for part in done):
            _LOG.info("%s held %d of %s already", out, there, plural(len(done), "part"))
    own: RunKeywords = {"on_progress": run.get("on_progress"), "cancel": run.get("cancel")}
    result = finish(plan, out, **own)
    return replace(result, seconds=time.monotonic() - start)


@dataclass(frozen=True)
class _Cluster:
    """A connected Ray, and the run on it."""

    ray: Any
    job: MergeJob
    plan: PartPlan
    run: RunKeywords


def _local_paths(recipe: Recipe) -> list[str]:
    """Return the sources that are local folders, by their names in the recipe."""
    every = (recipe.base, *recipe.agents.values())
    return [str(s) for s in every if not is_url(s) and Path(s).expanduser().exists()]


@contextlib.contextmanager
def _put_mark(out: str) -> Iterator[list[str]]:
    """Put a file beside the output, by which nodes check that they see the same disk."""
    if is_url(out):
        yield []
        return
    folder = Path(out) if os.path.isdir(out) else nearest_folder(Path(out))
    mark = folder / f".ram-studio-{secrets.token_hex(8)}"
    try:
        with contextlib.suppress(OSError):  # the parts report an unwritable folder
            mark.touch()
        yield [str(mark)] if mark.exists() else []
    finally:
        mark.unlink(missing_ok=True)


def _analysis(cluster: _Cluster, relations: bool) -> Analysis:
    work = partial(analyze_part, relations=relations)
    return add_partial(_on_parts(cluster, "analyze", work)).whole()


def _merge(
    plan: PartPlan, part: int, out: str, analysis: Analysis | None, **run: Any
) -> PartResult:
    return merge_part(plan, part, out, analysis=analysis, **run)


class _ProgressActor:
    """An actor that collects the progress of tasks."""

    def __init__(self) -> None:
        self._fractions: dict[int, float] = {}

    def record_progress(self, part: int, fraction: float) -> None:
        """Record a part's progress."""
        self._fractions[part] = fraction

    def read(self) -> dict[int, float]:
        """Return the finished share of each started part."""
        return self._fractions


def _in_worker(
    watch: Any, work: Callable, device: str, threads: int, plan: PartPlan, part: int, *args: Any
) -> Any:
    """Do one part's work, and report progress to the watch now and then."""
    reported_at = -math.inf

    def report_progress(progress: Progress) -> None:
        nonlocal reported_at
        if watch is not None and time.monotonic() - reported_at > _REPORT_SECONDS:
            reported_at = time.monotonic()
            watch.record_progress.remote(part, progress.fraction)

    return work(plan, part, *args, device=device, threads=threads, on_progress=report_progress)


def _on_parts(cluster: _Cluster, stage: str, work: Callable, *args: Any) -> list[Any]:
    """Return what ``work(plan, part, *args, **run)`` returns for every part, in order, by Ray."""
    ray, plan, run = cluster.ray, cluster.plan, cluster.run
    on_progress, cancel = run.get("on_progress"), run.get("cancel") or CancelToken()
    # Ray hides GPUs from tasks that do not request them.
    device = "cpu" if run.get("device", "auto") == "auto" else run["device"]
    threads = run.get("threads") or cores_of_a_node(ray)
    start, reported_at, watch = time.monotonic(), -math.inf, None
    if on_progress is not None:
        # On the driver's node: then it does not die with a worker node.
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        watch = ray.remote(num_cpus=0, scheduling_strategy=near)(_ProgressActor).remote()
    total = sum(part.nbytes for part in plan.parts)

    def poll() -> None:
        nonlocal reported_at
        cancel.raise_if_cancelled()
        if on_progress is None or watch is None or time.monotonic() - reported_at < _REPORT_SECONDS:
            return
        reported_at = time.monotonic()
        with contextlib.suppress(ray.exceptions.RayError):
            shares = ray.get(watch.read.remote(), timeout=_REPORT_SECONDS)
            done = sum(int(shares.get(part.part, 0.0) * part.nbytes) for part in plan.parts)
            last, begun = f"part {max(shares, default=0)}", len(shares)
            seconds = time.monotonic() - start
            on_progress(Progress(stage, last, begun, len(plan.parts), done, total, seconds))

    tasks, shared = {}, ray.put(plan)  # it has headers: send it once
    task = ray.remote(_in_worker)
    for part, memory in zip(plan.parts, memory_of_parts(cluster.job, plan, threads), strict=True):
        name = plan.text(part.part)
        options = task_options(device, threads, memory)
        check_room(ray, name, options)
        given = (watch, work, device, threads, shared, part.part, *args)
        tasks[task.options(**options).remote(*given)] = name
    return gather(ray, tasks, poll)
