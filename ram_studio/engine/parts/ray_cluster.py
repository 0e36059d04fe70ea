"""Ray (https://ray.io), used only on request: connecting, and waiting for tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import shown_bytes, shown_list
from ram_studio.errors import RamStudioError, SettingsError

MEMORY_BYTES = 512 << 20
"""Memory that a task requests by default."""

RETRIES = 3
"""How often a task is restarted when its worker or node dies."""

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
JOIN_SECONDS = 60.0
"""Time limit for joining a cluster; Ray itself tries for minutes, without a message."""

_JOIN = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit(" ".join(str(error).split())[:300] or type(error).__name__)
"""
_END_SECONDS = 30.0


@contextlib.contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """Yield the module `ray`, connected: to a cluster, or to one made here for "local".

    An existing connection of this process is used, and not closed.

    Raises: SettingsError when Ray is not installed, not found at the address, or cannot be joined
    within JOIN_SECONDS.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns at every start
    try:
        import ray
    except ImportError as error:
        raise SettingsError(
            'Ray is not installed; install it with `pip install "ram-studio[ray]"`, on every node.'
        ) from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False}
    with _own_signals():
        try:
            _check_listening(address)
            _try_to_join(address)
            ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise SettingsError(
                f"No Ray was found at {address!r}: {reason}. Give the address of its head node, as "
                "host:6379, or local."
            ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Raise OSError where no server listens at host:port: Ray itself tries for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and "/" not in address:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def _try_to_join(address: str) -> None:
    """Join a cluster in a child process: this one could hang in Ray, or be ended by it.

    Raises: SettingsError when that fails, or takes too long.
    """
    if address == "local":
        return
    command = [sys.executable, "-c", _JOIN, address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=JOIN_SECONDS, check=False
        )
        reason = " ".join(done.stderr.split())[-300:] or f"it ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        done, reason = None, f"no answer within {JOIN_SECONDS:g} s"
    if done is None or done.returncode:
        raise SettingsError(
            f"The Ray at {address!r} answers but cannot be joined: {reason}. Run this on one of "
            "its nodes (`ray start --address` makes this machine one), with the same versions of "
            "Ray and Python; or give ray://host:10001."
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our own signal handlers: Ray replaces that of SIGTERM, which stops a run cleanly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def alive_nodes(ray: Any) -> int:
    """Return the number of nodes that can work."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def cores_of_a_node(ray: Any) -> int:
    """Return the number of cores that every node with any can give to one task."""
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min((n for n in cores if n), default=1))


def task_options(device: str, threads: int, memory: int = MEMORY_BYTES) -> dict[str, Any]:
    """Return a task's request: cores, memory, a GPU where one computes; spread over nodes."""
    return {
        "num_cpus": threads,
        "num_gpus": 0 if device == "cpu" else 1,
        "memory": memory,
        "max_retries": RETRIES,
        "scheduling_strategy": "SPREAD",
    }


def check_room(ray: Any, name: str, options: Mapping[str, Any]) -> None:
    """Check that some node is large enough for a task: Ray would wait without a message.

    Args: name: of the task in messages; options: see ``task_options``.

    Raises: SettingsError.
    """
    wanted = {
        "CPU": options["num_cpus"],
        "GPU": options["num_gpus"],
        "memory": options["memory"],
    }
    offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(offer.get(k, 0) >= n for k, n in wanted.items()) for offer in offers):
        return
    best: Mapping[str, Any] = max(
        offers, key=lambda o: (o.get("GPU", 0), o.get("memory", 0)), default={}
    )
    found, needed = (
        f"{x.get('CPU', 0):g} cores, {x.get('GPU', 0):g} GPUs and "
        f"{shown_bytes(int(x.get('memory', 0)))}"
        for x in (best, wanted)
    )
    raise SettingsError(
        f"{name.capitalize()} needs {needed} on one node, and the largest offers {found}. Give "
        "fewer --threads, another --device or larger nodes."
    )


def find_unseen(paths: Sequence[str]) -> list[str]:
    """Return the paths that a worker does not see."""
    return [path for path in paths if not Path(path).expanduser().exists()]


def check_visible(ray: Any, paths: Sequence[str]) -> None:
    """Check that every working node sees some paths, by a small task on each.

    Raises: SettingsError naming the nodes and the paths that they do not see.
    """
    task = ray.remote(num_cpus=0, max_retries=RETRIES)(find_unseen)
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    tasks = {
        task.options(scheduling_strategy=near(node["NodeID"], soft=False)).remote(
            paths
        ): f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    }
    missing = dict(zip(tasks.values(), gather(ray, tasks, lambda: None), strict=True))
    if problems := [f"{node} does not see {', '.join(n)}" for node, n in missing.items() if n]:
        raise SettingsError(
            f"{shown_list(problems)}. All nodes must see models and output under the same paths: "
            "put them on a shared disk or into object storage."
        )


def gather(
    ray: Any,
    tasks: Mapping[Any, str],
    poll: Callable[[], None],
    on_done: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """Return the results of tasks, in their order.

    Args:
        tasks: references, and their names in messages.
        poll: called several times a second; what it raises stops all tasks.
        on_done: called with each result as it comes.

    Raises: the first error of a task, the others are stopped; SettingsError where a worker died
    more than RETRIES times. All tasks have ended in each case.
    """
    results: dict[Any, Any] = {}
    waiting = list(tasks)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_POLL_SECONDS)
            for task in done:
                results[task] = _result(ray, task, tasks[task])
                on_done(results[task])
            poll()
    except BaseException:
        _stop(ray, waiting)
        raise
    return [results[task] for task in tasks]


def _result(ray: Any, task: Any, name: str) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RamStudioError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingsError(
            f"{name.capitalize()}: its worker died and was restarted {RETRIES} times "
            f"({type(error).__name__}: {reason}). Check the node's memory and disk, and run "
            "again: finished parts are not repeated."
        ) from error


def _stop(ray: Any, waiting: list[Any]) -> None:
    """Stop tasks: by an interrupt, after which they clean up, then by force."""
    for task in waiting:
        ray.cancel(task)
    if waiting:
        _, left = ray.wait(waiting, num_returns=len(waiting), timeout=_END_SECONDS)
        for task in left:
            ray.cancel(task, force=True)
