"""Ray (https://ray.io), used only where somebody asks for it: connecting, and waiting for tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ram_studio.errors import RamStudioError, SettingsError

MEMORY_BYTES = 512 << 20
"""What a task asks for: buffers of blocks, whatever the model; matrix methods take more."""

RETRIES = 3
"""So often a task begins anew when its worker or node dies."""

_POLL_SECONDS = 0.2
_KNOCK_SECONDS = 5.0
_END_SECONDS = 30.0


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield the module `ray`, connected: to a cluster, or to one made here for "local".

    A connection that this process has already is used, and kept.

    Raises: SettingsError when Ray is not installed, or there is none at the address.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns at every start
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
            _knock(address)
            ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise SettingsError(
                f"There is no Ray at {address!r}: {reason}. Give the address of its head node, as "
                "host:6379, or local."
            ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at host:port: Ray itself tries that for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and "/" not in address:
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our own handlers: Ray takes SIGTERM for itself, by which we stop in order."""
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
    """Return how many nodes there are to work on."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def cores_of_a_node(ray: Any) -> int:
    """Return how many cores every node that has some can give to one task."""
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min((n for n in cores if n), default=1))


def task_options(device: str, threads: int) -> dict[str, Any]:
    """Return what a task asks for: cores, memory, a GPU where one computes; spread over nodes."""
    return {
        "num_cpus": threads,
        "num_gpus": 0 if device == "cpu" else 1,
        "memory": MEMORY_BYTES,
        "max_retries": RETRIES,
        "scheduling_strategy": "SPREAD",
    }


def gather(
    ray: Any,
    tasks: Mapping[Any, str],
    poll: Callable[[], None],
    on_done: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """Return the results of tasks, in their order.

    Args:
        tasks: references, and what messages call each.
        poll: called some times a second; what it raises stops all tasks.
        on_done: called with each result as it comes.

    Raises: the first error of a task, the others are stopped; SettingsError where a worker died
    more often than it is started again. All tasks have ended in each case.
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
            f"{name.capitalize()}: its worker died and was started {RETRIES} times again "
            f"({type(error).__name__}: {reason}). Look at the node's memory and disk, and run "
            "again: what is done is kept."
        ) from error


def _stop(ray: Any, waiting: list[Any]) -> None:
    """End tasks: by an interrupt, after which they clean up, and those that do not by force."""
    for task in waiting:
        ray.cancel(task)
    if waiting:
        _, left = ray.wait(waiting, num_returns=len(waiting), timeout=_END_SECONDS)
        for task in left:
            ray.cancel(task, force=True)
