"""A whole merge to object storage by one process: shard by shard, each as a part of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.parts_place import parts_place
from ram_studio.engine.job import MergeJob
from ram_studio.engine.parts.finishing import finish_opened, result_of
from ram_studio.engine.parts.planning import OpenPlan, load_sources, plan_of
from ram_studio.engine.parts.steps import is_finished, merge_units, share_of, upload_watch
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.result import MergeResult


def merge_to_url(
    recipe: Recipe,
    url: str,
    run: RunOptions,
    *,
    sketch: Sketch | None,
    max_shard_bytes: int,
    hash_sources: bool,
    on_download: Callable | None,
    stream: bool,
) -> MergeResult:
    """Merge as the recipe says to an fsspec URL; see ``merge`` for what the arguments mean.

    A shard goes up while the next one is merged, and its copy here is removed then. Given again, a
    merge that failed or was stopped goes on with the shards that are missing; those of the run
    before are fetched once and compared with their digests. One that is finished is left as it is.

    Raises: what ``merge`` raises; what was uploaded is kept.
    """
    start = time.monotonic()
    with parts_place(url) as place:
        place.receipt("none")  # whether one may look there at all, before any work
        report = load_sources(recipe, on_download, run.cancel, stream=stream)
        job = MergeJob(report, recipe, run)
        plan = plan_of(job, None, max_shard_bytes=max_shard_bytes, hash_sources=hash_sources)
        if is_finished(plan, place):
            return result_of(plan, place, start)
        place.begin(plan.digest)
        opened = OpenPlan(plan, job, run)
        ready = job.plan(sketch)
        sizes = [part.nbytes for part in plan.parts]
        for index, part in enumerate(plan.parts):
            tell = share_of(run.on_progress, sum(sizes[:index]), sizes[index], sum(sizes))
            merge_units(opened, ready, part.part, place, tell)
        place.wait(upload_watch(run))
        finish_opened(opened, place)
        return result_of(plan, place, start, job.bytes_read)
