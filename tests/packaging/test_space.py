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

ROOT = Path(__file__).resolve().parents[2]
# The licence as its authors publish it, with the appendix that tells how to apply it.
APACHE_2_0_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
SPACE_COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}


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


def test_requirements_name_the_dependencies_of_the_package() -> None:
    assert set(read_requirements("requirements.txt")) == set(
        declared(read_project()["dependencies"])
    )


def test_requirements_hold_the_tested_versions() -> None:
    constraints = read_requirements("constraints.txt")
    for name, requirement in read_requirements("requirements.txt").items():
        if name != "torch":
            assert requirement.specifier == constraints[name].specifier, name


def test_torch_stays_a_range_for_gpu_spaces() -> None:
    requirement = read_requirements("requirements.txt")["torch"]
    assert requirement.specifier == declared(read_project()["dependencies"])["torch"].specifier
    assert pinned_version(read_requirements("constraints.txt")["torch"]) in requirement.specifier


def test_constraints_pin_everything_that_is_declared_within_its_range() -> None:
    project = read_project()
    constraints = read_requirements("constraints.txt")
    extras = project["optional-dependencies"]
    # vLLM chooses a CUDA build of torch of its own, so no version of it was installed beside these.
    groups = [texts for extra, texts in extras.items() if extra != "vllm"]
    for name, requirement in declared(project["dependencies"], *groups).items():
        if name == canonicalize_name(project["name"]):
            continue
        assert name in constraints, f"constraints.txt does not pin {name}"
        assert pinned_version(constraints[name]) in requirement.specifier, name


def test_constraints_are_plain_pins_of_published_versions() -> None:
    for requirement in read_requirements("constraints.txt").values():
        assert requirement.url is None
        assert "+" not in pinned_version(requirement), f"{requirement} is a local build"


def test_front_matter_describes_a_gradio_space(front_matter: dict[str, Any]) -> None:
    assert front_matter["sdk"] == "gradio"
    assert front_matter["app_file"] == "app.py"
    assert (ROOT / front_matter["app_file"]).is_file()
    pin = pinned_version(read_requirements("constraints.txt")["gradio"])
    assert str(front_matter["sdk_version"]) == pin
    assert front_matter["license"] == "apache-2.0"
    assert {front_matter["colorFrom"], front_matter["colorTo"]} <= SPACE_COLOURS
    assert len(front_matter["short_description"]) <= 60


def test_front_matter_asks_for_a_python_that_the_package_takes(
    front_matter: dict[str, Any],
) -> None:
    version = front_matter["python_version"]
    assert version == "3.12", "quoted, or YAML reads 3.10 as 3.1"
    assert version in SpecifierSet(read_project()["requires-python"])


def test_the_readme_also_serves_a_docker_space(front_matter: dict[str, Any]) -> None:
    # Changing the one line `sdk: gradio` to `sdk: docker` must do: 7860 is Docker's default port.
    assert front_matter.get("app_port", 7860) == 7860


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order: (keyword, arguments), continuations joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = code.replace("\\\n", " ").splitlines()
    split = [line.split(None, 1) for line in lines if line.strip()]
    return [(keyword.upper(), " ".join(rest.split())) for keyword, rest in split]


def arguments_of(dockerfile: list[tuple[str, str]], keyword: str) -> list[str]:
    return [rest for name, rest in dockerfile if name == keyword]


def test_the_image_starts_from_the_python_of_the_space(
    dockerfile: list[tuple[str, str]], front_matter: dict[str, Any]
) -> None:
    image = f"python:{front_matter['python_version']}-slim"
    assert f"PYTHON_IMAGE={image}" in arguments_of(dockerfile, "ARG")
    # One image for both stages, so that one digest pins them.
    assert arguments_of(dockerfile, "FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_the_container_runs_as_user_1000(dockerfile: list[tuple[str, str]]) -> None:
    (user,) = arguments_of(dockerfile, "USER")
    last = last_stage(dockerfile)
    created = next(r for r in arguments_of(last, "RUN") if r.startswith("useradd"))
    assert re.search(rf"--uid 1000 {user}$", created)
    keywords = [keyword for keyword, _ in last]
    assert keywords.index("RUN") < keywords.index("USER") < keywords.index("COPY")


def last_stage(dockerfile: list[tuple[str, str]]) -> list[tuple[str, str]]:
    starts = [i for i, (keyword, _) in enumerate(dockerfile) if keyword == "FROM"]
    return dockerfile[starts[-1] :]


def test_the_last_stage_holds_no_tool_of_building(dockerfile: list[tuple[str, str]]) -> None:
    last = last_stage(dockerfile)
    assert not any("pip" in rest or "apt" in rest for rest in arguments_of(last, "RUN"))
    assert arguments_of(last, "COPY") == [
        "--from=build /opt/ram-studio /opt/ram-studio",
        "--chown=user app.py ./",
    ]
    removed = arguments_of(dockerfile, "RUN")
    assert any("pip uninstall --yes hatchling pip" in rest for rest in removed)


def test_the_container_serves_port_7860_on_all_addresses(
    dockerfile: list[tuple[str, str]],
) -> None:
    assert arguments_of(dockerfile, "EXPOSE") == ["7860"]
    last = last_stage(dockerfile)
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(arguments_of(last, "ENV"))))
    assert environment["GRADIO_SERVER_NAME"] == "0.0.0.0"
    assert environment["GRADIO_SERVER_PORT"] == "7860"
    assert environment["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert environment["HOME"] == "/home/user"
    assert environment["HF_HOME"].startswith("/home/user/"), "user 1000 must own it"


@pytest.mark.parametrize("keyword", ["CMD", "HEALTHCHECK"])
def test_commands_need_no_shell(dockerfile: list[tuple[str, str]], keyword: str) -> None:
    (rest,) = arguments_of(dockerfile, keyword)
    command = json.loads(rest[rest.index("[") :])
    assert command[0] == "python"
    if keyword == "CMD":
        assert command == ["python", "app.py"]
    else:
        compile(command[-1], "HEALTHCHECK", "exec")


def test_the_image_installs_the_tested_versions_and_names_no_index(
    dockerfile: list[tuple[str, str]],
) -> None:
    installs = [rest for rest in arguments_of(dockerfile, "RUN") if "pip install" in rest]
    assert "--constraint constraints.txt --requirement requirements.txt" in installs[0]
    assert 'TORCH_INDEX_URL=""' in arguments_of(dockerfile, "ARG")
    assert not any("://" in rest for rest in installs)


def test_what_the_image_needs_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = {line.strip("/") for line in lines if line and not line.startswith("#")}
    needed = {"app.py", "assets", "ram_studio", "pyproject.toml", "README.md", "LICENSE"}
    assert not ignored & (needed | {"requirements.txt", "constraints.txt"})
    assert {".git", ".venv", "tests", "**/__pycache__"} <= ignored


def test_the_licence_is_the_unmodified_apache_2_0() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0_SHA256
