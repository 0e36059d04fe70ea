"""A laptop that serves others: only --models-dir is open, and its path is never shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from http_user import HttpUser, RefusedError, tell

from ram_studio.resources import asset_path

pytestmark = pytest.mark.slow


class Laptop(NamedTuple):
    """The app bound to every address. home: a folder of the owner that holds the models' folder."""

    url: str
    home: Path


@pytest.fixture(scope="module")
def laptop(run_app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder = tmp_path_factory.mktemp("owner")
    home = folder / "home-of-somebody"
    for place in ("models/m", "private"):
        for name in ("base", "coding"):
            shutil.copytree(asset_path("independent", name), home / place / name)
    with run_app(
        folder, "--models-dir", str(home / "models"), GRADIO_SERVER_NAME="0.0.0.0", HF_TOKEN="hf_o"
    ) as url:
        yield Laptop(url, home)


def test_refusals_do_not_tell_what_is_on_the_disk(laptop: Laptop) -> None:
    places = [
        laptop.home / "private" / "base",  # a model
        laptop.home / "private",
        laptop.home / "nothing here",
        Path("/etc/passwd"),
    ]
    asked = [*map(str, places), "../private/base", "m/../../private/base", "~/x", "./m/base"]
    said = set()

    async def story() -> None:
        async with HttpUser(laptop.url) as user:
            await user.open()
            for base in asked:
                with pytest.raises(RefusedError) as refused:
                    await user.call("analyze", base=base, agents={"a": "m/coding"})
                said.add(str(refused.value).replace(repr(base), "BASE"))

    tell(story())
    assert len(said) == 1, "one answer, whatever is there"
    assert "choose one from the list" in said.pop()


def test_downloads_name_no_path_of_the_laptop(laptop: Laptop) -> None:
    async def story() -> tuple[list[Any], dict[str, bytes]]:
        async with HttpUser(laptop.url) as user:
            await user.open()
            models = {"base": "m/base", "agents": {"coding": "m/coding"}}
            found = await user.call("analyze", **models)
            own = await user.call("merge", analysis=found["analysis"], method="ram+")
            scores = await user.call("evaluate", analysis=found["analysis"], limit=1)
            made = laptop.home.parent.glob("ram-studio*/app-*/*/merges/*/*")
            files = {path.name: path.read_bytes() for path in made}
            shipped = await user.call("merge", analysis="shared-style", method="ram")
            made = laptop.home.parent.glob("ram-studio*/app-*/*/merges/*/*.*")
            files |= {f"example {path.name}": path.read_bytes() for path in made}
            return [found, own, scores, shipped], files

    answers, files = tell(story())
    assert "base: m/base" in answers[1]["recipe"]
    assert "base: assets/independent/base" in answers[3]["recipe"]
    assert b'"m/base"' in files["ram_studio.json"]
    assert set(files) >= {"README.md", "example README.md", "example ram_studio.json"}
    places = (laptop.home, asset_path("independent").parents[1], Path.home())
    for name, content in [*files.items(), ("answers", repr(answers).encode())]:
        for place in places:
            assert str(place).encode() not in content, name
