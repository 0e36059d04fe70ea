"""The wheel, and the app as the Dockerfile installs and starts it: made once for this room.

Installing the dependencies again would take minutes and prove nothing. So what `pip install` would
fetch must be there in the pinned versions, and the new environment borrows it; all else is done as
the Dockerfile says.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from app_process import running_app
from installation import Installation, run
from packaging.requirements import Requirement
from test_space import ROOT, instructions


def _left_out(folder: str, names: list[str]) -> list[str]:
    """Return what ``COPY . .`` leaves out: all that .dockerignore names."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line.strip("/") for line in lines if line and not line.startswith("#")]
    place = Path(folder).relative_to(ROOT)
    return [
        name
        for name in names
        for pattern in ignored
        if fnmatch.fnmatch((place / name).as_posix(), pattern.removeprefix("**/"))
        or (pattern.startswith("**/") and fnmatch.fnmatch(name, pattern[3:]))
    ]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a wheel, built from what the image gets to see with the build backend found here."""
    out = tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, out / "build", ignore=_left_out)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--no-index", "--wheel-dir", out, ".", cwd=out / "build")
    (path,) = out.glob("*.whl")
    return path


def _is_installed(line: str) -> bool:
    requirement = Requirement(line)
    return version(requirement.name).split("+")[0] in requirement.specifier


@pytest.fixture(scope="session")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Each instruction of the Dockerfile is done or accounted for; one that is new fails here."""
    made = Installation(tmp_path_factory.mktemp("image"))
    home = made.work.parent
    for keyword, rest in instructions():
        if keyword == "RUN" and rest.startswith("python -m venv"):
            made.make("--without-pip")
        elif keyword == "RUN" and "--requirement requirements.txt" in rest:
            lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
            missing = [line for line in lines if line[:1].isalpha() and not _is_installed(line)]
            assert missing == [], "what pip would install is not what is tested here"
        elif keyword == "RUN" and rest.startswith("pip install --no-deps --no-build-isolation ."):
            made.install(wheel)
        elif keyword == "ENV" and "GRADIO_SERVER_PORT" in rest:
            wanted = dict(re.findall(r"(\w+)=(\S+)", rest))
            made.variables |= {k: v.replace("/home/user", str(home)) for k, v in wanted.items()}
            made.variables["PATH"] = f"{made.environment / 'bin'}:{os.environ['PATH']}"
            made.variables["TMPDIR"] = str(home)
            # As in the image, where nothing lies beside the package but what root put there.
            made.variables["XDG_CACHE_HOME"] = str(home / ".cache")
        elif keyword == "COPY" and rest == "--chown=user app.py ./":
            shutil.copy(ROOT / "app.py", made.work)
        elif keyword == "RUN" and rest.startswith(("mkdir", "python -c")):
            run("sh", "-c", rest, env=made.variables, cwd=made.work)
        elif keyword in ("CMD", "HEALTHCHECK"):
            made.commands[keyword] = json.loads(rest[rest.index("[") :])
        else:
            # Of the image, not of what runs in it; see test_space.py.
            known = ("ARG", "FROM", "EXPOSE", "USER", "ENV PATH", "WORKDIR", "RUN useradd")
            known += ("COPY . .", "COPY --from=build", "COPY requirements.txt constraints.txt ./")
            assert f"{keyword} {rest}".startswith(known), f"{keyword} {rest} is not done here"
    return made


@pytest.fixture(scope="session")
def address(image: Installation) -> Iterator[str]:
    """Where the installed app answers; Ctrl+C must end it, and leave nothing of it behind."""
    python, *rest = image.commands["CMD"]
    assert python == "python"
    variables = image.variables
    with running_app([image.python, *rest], image.work, variables, signal.SIGINT) as found:
        variables["GRADIO_SERVER_PORT"] = str(urlsplit(found).port)
        yield found
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", urlsplit(found).port), timeout=5)
    assert not list(image.work.parent.glob("ram-studio*/app-*"))
