"""What a Hugging Face Space and a container read: front matter, requirements.txt, Dockerfile."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pandas.compat._optional import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
# The license as its authors publish it, with the appendix that tells how to apply it.
APACHE_2_0_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
UNPINNED = {"vllm", "ray"}
SPACE_COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}


def read_requirements(name: str) -> dict[str, Requirement]:
    """Return the requirements of a file by their canonical names."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def read_project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(*groups: list[str]) -> dict[str, Requirement]:
    found = [Requirement(text) for group in groups for text in group]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def pinned_version(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", f"{requirement} is no pin"
    return specifier.version


@pytest.fixture(scope="module")
def front_matter() -> dict[str, Any]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    opening, matter, _ = text.split("---\n", 2)
    assert opening == "", "the front matter must open the file"
    return yaml.safe_load(matter)


def test_requirements_are_dependencies_in_tested_versions():
    constraints, requirements = map(read_requirements, ("constraints.txt", "requirements.txt"))
    dependencies = declared(read_project()["dependencies"])
    assert set(requirements) == set(dependencies)
    for name, requirement in requirements.items():
        # torch stays a range: a GPU Space brings its own build.
        expected = dependencies if name == "torch" else constraints
        assert requirement.specifier == expected[name].specifier, name
    assert pinned_version(constraints["torch"]) in requirements["torch"].specifier


def test_styled_tables_find_the_jinja_that_pandas_asks_for():
    """Pandas declares it only as an extra, and refuses to style a table with an earlier one."""
    (bound,) = declared(read_project()["dependencies"])["jinja2"].specifier
    assert bound.operator == ">="
    assert Version(bound.version) >= Version(VERSIONS["jinja2"])


def test_constraints_pin_every_dependency_within_its_range():
    project = read_project()
    constraints = read_requirements("constraints.txt")
    for requirement in constraints.values():
        assert requirement.url is None
        assert "+" not in pinned_version(requirement), f"{requirement} is a local build"
    extras = project["optional-dependencies"]
    # vLLM chooses a CUDA build of torch of its own and Ray is the cluster's: no version of them was
    # installed beside these. Of benchmarks only data is read; they are pinned where they are named.
    groups = [texts for extra, texts in extras.items() if extra not in UNPINNED]
    for name, requirement in declared(project["dependencies"], *groups).items():
        if name == canonicalize_name(project["name"]) or str(requirement.specifier)[:2] == "==":
            continue
        assert name in constraints, f"constraints.txt does not pin {name}"
        assert pinned_version(constraints[name]) in requirement.specifier, name


def test_front_matter_describes_a_gradio_space(front_matter):
    assert front_matter["sdk"] == "gradio"
    assert front_matter["app_file"] == "app.py"
    assert (ROOT / front_matter["app_file"]).is_file()
    pin = pinned_version(read_requirements("constraints.txt")["gradio"])
    assert str(front_matter["sdk_version"]) == pin
    assert front_matter["license"] == "apache-2.0"
    assert {front_matter["colorFrom"], front_matter["colorTo"]} <= SPACE_COLORS
    assert len(front_matter["short_description"]) <= 60
    version = front_matter["python_version"]
    assert version == "3.12", "quoted, or YAML reads 3.10 as 3.1"
    assert version in SpecifierSet(read_project()["requires-python"])
    # Changing the one line `sdk: gradio` to `sdk: docker` must do: 7860 is Docker's default port.
    assert front_matter.get("app_port", 7860) == 7860


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's (keyword, arguments) in order, continuations joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = code.replace("\\\n", " ").splitlines()
    split = [line.split(None, 1) for line in lines if line.strip()]
    return [(keyword.upper(), " ".join(rest.split())) for keyword, rest in split]


def _by_keyword(steps: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {key: [rest for other, rest in steps if other == key] for key, _ in steps}


def test_the_image_holds_what_was_tested_and_runs_as_user_1000(front_matter):
    steps = instructions()
    starts = [i for i, (keyword, _) in enumerate(steps) if keyword == "FROM"]
    every, last = _by_keyword(steps), _by_keyword(steps[starts[-1] :])
    # One image for both stages, so that one digest pins them.
    tag = f"PYTHON_IMAGE=python:{front_matter['python_version']}-slim@sha256:"
    assert any(re.fullmatch(re.escape(tag) + "[0-9a-f]{64}", rest) for rest in every["ARG"])
    assert every["FROM"] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    installs = [rest for rest in every["RUN"] if "pip install" in rest]
    assert "--constraint constraints.txt --requirement requirements.txt" in installs[0]
    assert 'TORCH_INDEX_URL=""' in every["ARG"]
    assert not any("://" in rest for rest in installs)
    # The last stage holds no tool of building.
    assert any("pip uninstall --yes hatchling pip" in rest for rest in every["RUN"])
    assert not any("pip" in rest or "apt" in rest for rest in last["RUN"])
    (user,) = every["USER"]
    copied = ["--from=build /opt/ram-studio /opt/ram-studio", f"--chown={user} app.py ./"]
    assert last["COPY"] == copied
    created = next(rest for rest in last["RUN"] if rest.startswith("useradd"))
    assert re.search(rf"--uid 1000 {user}$", created)
    order = list(last)
    assert order.index("RUN") < order.index("USER") < order.index("COPY")

    assert every["EXPOSE"] == ["7860"]
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(last["ENV"])))
    assert environment["GRADIO_SERVER_NAME"] == "0.0.0.0"
    assert environment["GRADIO_SERVER_PORT"] == "7860"
    assert environment["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert environment["HOME"] == "/home/user"
    assert environment["HF_HOME"].startswith("/home/user/"), "user 1000 must own it"
    (start,), (check,) = every["CMD"], every["HEALTHCHECK"]  # lists: they need no shell
    assert json.loads(start) == ["python", "app.py"]
    python, _, code = json.loads(check[check.index("[") :])
    assert python == "python"
    compile(code, "HEALTHCHECK", "exec")


def test_what_the_image_needs_is_not_ignored():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = {line.strip("/") for line in lines if line and not line.startswith("#")}
    needed = {"app.py", "assets", "ram_studio", "pyproject.toml", "README.md", "LICENSE"}
    assert not ignored & (needed | {"requirements.txt", "constraints.txt"})
    assert {".git", ".venv", "tests", "**/__pycache__"} <= ignored


def test_the_license_is_the_unmodified_apache_2_0():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0_SHA256
