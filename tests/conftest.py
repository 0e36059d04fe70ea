"""What every test gets: its own home, its share of threads, checked array shapes, no network.

Libraries read their paths and switches when they are imported, so this file sets the environment
while it is itself imported, before any test module. Child processes inherit all of it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import ipaddress
import os
import resource
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from loopback_hub import LoopbackHub

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(tempfile.mkdtemp(prefix="ram-studio-tests-"))
# At exit, not by a fixture: a process that only hands out tests to others runs no fixture.
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# An example may take long where other work takes the machine.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# Settings of whoever runs the tests that would change what the tests see.
for name in (
    "GRADIO_SERVER_NAME",
    "GRADIO_SERVER_PORT",
    "HF_ENDPOINT",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HUGGING_FACE_HUB_TOKEN",
    "SPACE_ID",
    "SSL_CERT_FILE",
):
    os.environ.pop(name, None)

os.environ.update(
    HF_HOME=str(HOME / "huggingface"),
    RAM_STUDIO_HOME=str(HOME / "ram-studio"),
    XDG_CACHE_HOME=str(HOME / "cache"),
    XDG_CONFIG_HOME=str(HOME / "config"),
    XDG_DATA_HOME=str(HOME / "data"),
    GRADIO_TEMP_DIR=str(HOME / "gradio"),
    GRADIO_ANALYTICS_ENABLED="False",
    HF_HUB_DISABLE_TELEMETRY="1",
    # torch's threads stand still when other processes hold the cores they wait for.
    OMP_NUM_THREADS="1" if "PYTEST_XDIST_WORKER" in os.environ else "2",
    TOKENIZERS_PARALLELISM="false",
    # A folder is read when an authority is asked for, a file by every client of httpx: 24 ms each.
    SSL_CERT_DIR=ssl.get_default_verify_paths().openssl_capath,
)


def _checked_modules() -> list[str]:
    """Return the algorithm modules that annotate arrays, which is checked at each call.

    numba compiles functions from their own code, so the loops are left out.
    """
    paths = sorted((ROOT / "ram_studio" / "algorithm").rglob("*.py"))
    others = [path for path in paths if path.parent.name != "loops"]
    shapes = ("from jaxtyping import", "from ram_studio.algorithm.shapes import")
    kept = [path for path in others if any(one in path.read_text("utf-8") for one in shapes)]
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in kept]
    return [name for name in names if not name.endswith("__init__")]


install_import_hook(_checked_modules(), "array_checks.checked")

sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "benchmarks")]
# Processes that tests start import the package from here, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


# Files that use one app, or one wheel: tested in one process, they start or build it once.
TOGETHER = {
    "app": (
        "test_journeys",
        "test_check_journeys",
        "test_steps",
        "test_microscope_panel",
        "test_lesson",
        "test_endpoints",
        "test_stage",
        "test_landing",
        "test_teaching",
        "test_link_previews",
        "test_real_set_page",
        "test_classroom",
    ),
    "space": (
        "test_public_space",
        "test_sign_in",
        "test_foreign_requests",
        "test_hostile_requests",
    ),
    "convert": ("test_convert", "test_advice", "test_sources_page"),
    "wheel": ("test_image", "test_wheel"),
}
SHARED = {stem: name for name, stems in TOGETHER.items() for stem in stems}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage after collecting only, and never again at what lives until the end.

    Modules and tests are some million objects. To walk them again and again is a fourth of
    collecting, in each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take long first, so that processes end together; the rest as it stands.

    Fail where a file uses an app of a group that it is not in.
    """
    long = {item.path for item in items if any(map(item.get_closest_marker, ("browser", "slow")))}
    items.sort(key=lambda item: item.path not in long)
    for group, app in (("app", "app_url"), ("space", "space_url")):
        using = {item.path.stem for item in items if app in getattr(item, "fixturenames", ())}
        assert using <= {*TOGETHER[group]}, f"they would start {app} once more"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deal out whole files to processes, and those that share an app or a wheel to one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return SHARED.get(Path(file).stem, file)

    return Scheduling(config, log)


def _leaves_the_host(address: object) -> bool:
    """Return whether a socket address lies outside this machine (a path is a local socket)."""
    if not isinstance(address, tuple):
        return False
    host = str(address[0]).split("%", 1)[0]
    try:
        return not ipaddress.ip_address(host or "127.0.0.1").is_loopback
    except ValueError:
        return host != "localhost"


@pytest.fixture(autouse=True)
def _stay_on_this_host(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Refuse connections to other hosts, and fail the test that tried one.

    The refusal alone could be swallowed by the code under test, so attempts are also collected.
    """
    if request.node.get_closest_marker("network"):
        yield
        return
    attempts: list[object] = []

    def guard(name: str) -> None:
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: object) -> object:
            if _leaves_the_host(address):
                attempts.append(address)
                raise ConnectionRefusedError(f"tests stay on this host; asked for {address}")
            return original(self, address)

        monkeypatch.setattr(socket.socket, name, guarded)

    guard("connect")
    guard("connect_ex")
    yield
    assert not attempts, f"connections to other hosts: {attempts}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub on this machine that everybody is sent to, with an empty cache."""
    import huggingface_hub
    from loopback_hub import serving

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server
    huggingface_hub.close_session()


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run the command line in this process: returns (exit code, stdout, stderr)."""
    from ram_studio.cli import main

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ram-studio", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def small_files() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Have the kernel refuse to write files beyond so many bytes, as a full disk does."""

    @contextlib.contextmanager
    def limited(nbytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def few_open_files() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Let this process open some forty more files, as if it had most of its 1,024 open."""

    @contextlib.contextmanager
    def limited() -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 40, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    return limited


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Path of a browser for Playwright's `chromium.launch(executable_path=...)`.

    `make test` installs one first; a bare pytest run on a machine without any skips the test.
    """
    from chromium import find_chromium

    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium or Chrome here; `make test` installs one")
    return str(path)
