"""The Dockerfile's steps, run in a fresh folder: what the image holds starts and is healthy.

Where a Docker daemon runs and RAM_STUDIO_TEST_IMAGE is set, the image itself is built and started;
that downloads torch. Else each step is done with the packages that are installed already: what
`pip install` would fetch must be there in the pinned versions, all else is as the file says.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_space import ROOT, _instructions

START_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def copy_context(target: Path) -> None:
    """Do ``COPY . .``: everything that .dockerignore does not name."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line.strip("/") for line in lines if line and not line.startswith("#")]

    def left_out(folder: str, names: list[str]) -> list[str]:
        place = Path(folder).relative_to(ROOT)
        return [
            name
            for name in names
            for pattern in ignored
            if fnmatch.fnmatch((place / name).as_posix(), pattern.removeprefix("**/"))
            or (pattern.startswith("**/") and fnmatch.fnmatch(name, pattern[3:]))
        ]

    shutil.copytree(ROOT, target, ignore=left_out)


def is_installed(line: str) -> bool:
    requirement = Requirement(line)
    return version(requirement.name).split("+")[0] in requirement.specifier


def wait_until_healthy(
    check: list[str], environment: dict[str, str], running: subprocess.Popen
) -> None:
    """Ask as the file's HEALTHCHECK does until it says yes."""
    end = time.monotonic() + START_SECONDS
    while subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode:
        assert running.poll() is None, "it ended"
        assert time.monotonic() < end, "it did not become healthy"


def test_the_steps_of_the_image_end_in_a_healthy_app(tmp_path: Path) -> None:
    """Each instruction is done or accounted for; one that is new to this test fails it."""
    build, site, home = tmp_path / "build", tmp_path / "opt", tmp_path / "home"
    folder, commands, environment = build, {}, {}
    program = {"python": sys.executable}
    done = []
    for keyword, rest in _instructions():
        done.append(f"{keyword} {rest}")
        if (keyword, rest) == ("COPY", ". ."):
            copy_context(build)
        elif keyword == "RUN" and "--requirement requirements.txt" in rest:
            lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
            missing = [line for line in lines if line[:1].isalpha() and not is_installed(line)]
            assert missing == [], "what pip would install is not what is tested here"
        elif keyword == "RUN" and rest.startswith("pip install --no-deps --no-build-isolation ."):
            into = ["--no-index", "--quiet", "--target", str(site)]
            flags = ["--no-deps", "--no-build-isolation", "."]
            subprocess.run(
                [sys.executable, "-m", "pip", "install", *into, *flags], cwd=build, check=True
            )
        elif keyword == "ENV" and "GRADIO_SERVER_PORT" in rest:
            wanted = dict(re.findall(r"(\w+)=(\S+)", rest))
            shared = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPACE_ID")}
            environment = {
                **shared,
                **{k: v.replace("/home/user", str(home)) for k, v in wanted.items()},
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(site),
                "GRADIO_SERVER_PORT": str(free_port()),
                "TMPDIR": str(tmp_path),
            }
        elif (keyword, rest) == ("WORKDIR", "$HOME/app"):
            folder = home / "app"
            folder.mkdir(parents=True)
        elif keyword == "COPY" and rest == "--chown=user app.py ./":
            shutil.copy(ROOT / "app.py", folder)
        elif keyword == "RUN" and rest.startswith(("mkdir", "python -c")):
            line = rest.replace("python", sys.executable, 1) if "python" in rest else rest
            subprocess.run(["sh", "-c", line], env=environment, cwd=folder, check=True)
        elif keyword in ("CMD", "HEALTHCHECK"):
            first, *others = json.loads(rest[rest.index("[") :])
            commands[keyword] = [program.get(first, first), *others]
        else:
            # Of the image, not of what runs in it; see test_space.py.
            known = ("ARG", "FROM", "EXPOSE", "USER", "ENV PATH", "WORKDIR /build", "RUN useradd")
            known += ("RUN python -m venv", "COPY requirements.txt constraints.txt ./")
            known += ("COPY --from=build",)
            assert done[-1].startswith(known), f"{done[-1]} is not done by this test"
    assert list(tmp_path.rglob("*.nbi")), "the loops are compiled before the app starts"
    log = (tmp_path / "log").open("wb")
    running = subprocess.Popen(
        commands["CMD"], env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        wait_until_healthy(commands["HEALTHCHECK"], environment, running)
        inside = "import ram_studio; print(ram_studio.__file__)"
        found = subprocess.check_output([sys.executable, "-c", inside], env=environment, cwd=folder)
        assert found.decode().startswith(str(site)), "not the repository's"
    finally:
        running.terminate()
        running.wait(30)
        log.close()


@pytest.mark.network
@pytest.mark.slow
def test_the_image_is_built_and_becomes_healthy() -> None:
    """Asked for by RAM_STUDIO_TEST_IMAGE=1, as it downloads some gigabytes."""
    if not os.environ.get("RAM_STUDIO_TEST_IMAGE") or not shutil.which("docker"):
        pytest.skip("RAM_STUDIO_TEST_IMAGE is not set, or there is no docker")
    subprocess.run(["docker", "build", "-t", "ram-studio-test", str(ROOT)], check=True)
    started = subprocess.check_output(["docker", "run", "-d", "--rm", "ram-studio-test"])
    name = started.decode().strip()
    try:
        end = time.monotonic() + START_SECONDS
        state = ["docker", "inspect", "-f", "{{.State.Health.Status}}", name]
        while subprocess.check_output(state).decode().strip() != "healthy":
            assert time.monotonic() < end, "it did not become healthy"
            time.sleep(1)
    finally:
        subprocess.run(["docker", "stop", name], check=True)
