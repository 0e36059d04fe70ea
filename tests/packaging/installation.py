"""An environment of its own with ram_studio in it, where nothing of the clone can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Without what would let a child import the clone.
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPACE_ID"}
OUTSIDE = {name: value for name, value in os.environ.items() if name not in HIDDEN}


def run(
    *command: str | Path, cwd: Path, env: Mapping[str, str] = OUTSIDE, timeout: float = 600
) -> str:
    """Run a command away from the clone, so that only an installed package is met."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass
class Installation:
    """A virtual environment with ram_studio, and a folder to work in.

    variables: the environment of its processes. commands: a Dockerfile's CMD and HEALTHCHECK.
    """

    place: Path
    variables: dict[str, str] = field(default_factory=lambda: dict(OUTSIDE))
    commands: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment, self.work = self.place / "venv", self.place / "home" / "app"
        self.work.mkdir(parents=True)

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.environment / "bin" / "ram-studio"

    def make(self, *options: str) -> None:
        """Make the environment, with options of ``venv``."""
        run(sys.executable, "-m", "venv", *options, self.environment, cwd=self.work)

    def install(self, wheel: Path) -> None:
        """Install the wheel as the only package of its own, and let it borrow all others.

        Path files in the borrowed folder (an editable install puts one there) are not followed
        from here, so the clone cannot stand in for the wheel.
        """
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet")
        run(*pip, "--no-deps", "--no-index", wheel, cwd=self.work)
        (site,) = self.environment.glob("lib/python*/site-packages")
        borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
        where = "import ram_studio; print(ram_studio.__file__)"
        origin = run(self.python, "-c", where, cwd=self.work).strip()
        assert Path(origin).is_relative_to(site), f"the package comes from {origin}"
