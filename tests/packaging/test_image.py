"""The image itself, where a Docker daemon runs; its steps without one: conftest.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from installation import run
from test_space import ROOT

pytestmark = pytest.mark.slow

START_SECONDS = 120.0


def test_the_steps_of_the_image_end_in_a_healthy_app(image, address):
    assert list(image.work.parent.rglob("*.nbi")) or list(image.environment.rglob("*.nbi"))
    python, *rest = image.commands["HEALTHCHECK"]
    assert python == "python"
    run(image.python, *rest, env=image.variables, cwd=image.work)


@pytest.mark.network
@pytest.mark.slow
def test_the_image_is_built_and_becomes_healthy():
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
