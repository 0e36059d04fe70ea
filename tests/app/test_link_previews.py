"""What a link says of itself before it is opened, asked over HTTP."""

from __future__ import annotations

import io
import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from http_user import HttpUser, tell
from PIL import Image

from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.landing.picture import Pictures
from ram_studio.app.landing.preview import KEYS, preview_of, unknown_parts
from ram_studio.app.session.deep_link import AVERAGE
from ram_studio.app.session.sets import DEFAULT_SET, TITLES
from ram_studio.app.session.shared import TuneSettings

_META = re.compile(r'<meta (?:property|name)="([\w:]+)" content="([^"]*)">')


def _tags(url: str, **query: str) -> dict[str, str]:
    """Return title and meta tags of a page; each may stand there once."""
    text = httpx.get(url, params=query, timeout=60).text
    head = text[: text.index("</head>")]
    found = [(name, unescape(content)) for name, content in _META.findall(head)]
    tags = dict(found)
    assert len(tags) == len(found), "a tag stands there twice"
    assert "Gradio" not in " ".join(tags.values())
    (title,) = re.findall(r"<title>(.*?)</title>", head)
    return {**tags, "title": unescape(title)}


STATES: list[dict[str, str]] = [
    {},
    {"lesson": "2"},
    {"lesson": "limits"},
    {"step": "history"},
    {"set": "shared-style"},
    {"set": "dense"},
    {"set": "shared-style", "rule": "sum"},
    {"set": "shared-style", "rule": "ram", "epsilon": "0.001"},
    {"set": "independent", "step": "merge"},
    {"set": "independent", "step": "check"},
    {"set": "dense", "step": "merge"},
    {"set": "shared-style", "pin": "ties~density=0.2~scale=1"},
    {"set": "shared-style", "rule": "ties", "density": "0.5", "scale": "1"},
]


def test_every_state_has_its_own_title_description_and_picture(app_url: str) -> None:
    pages = [_tags(app_url, **state) for state in STATES]
    for state, tags in zip(STATES, pages, strict=True):
        assert tags["og:title"] == tags["title"]
        assert tags["og:url"] == (f"{app_url}?{urlencode(state)}" if state else app_url)
        assert tags["og:image"].startswith(f"{app_url}ram/preview/")
        answer = httpx.get(tags["og:image"], timeout=60)
        assert answer.headers["content-type"] == "image/png"
        assert "max-age" in answer.headers["cache-control"]
        assert len(answer.content) < 60_000
        assert Image.open(io.BytesIO(answer.content)).size == (1200, 630)
    assert len({(tags["title"], tags["og:description"]) for tags in pages}) == len(STATES)


def test_a_merges_preview_tells_what_was_measured(app_url: str) -> None:
    found = outcomes_of("shared-style")
    usual, average = found.nearest(TuneSettings()), found.find(AVERAGE)
    tags = _tags(app_url, set="shared-style")
    assert tags["title"] == f"RAM+ solves {usual.total} of {usual.prompts} · RAM Studio"
    assert f"Average {average.total}," in tags["og:description"]
    assert tags["og:image"].endswith(f"/shared-style/{usual.number}.png")
    assert "Nearest" not in tags["og:description"]
    beside = _tags(app_url, set="shared-style", r="0.123", epsilon="3e-5")
    assert "Nearest measured setting" in beside["og:description"]
    weighed = _tags(app_url, set="shared-style", weights="coding=0.5, tool=0 1")
    assert weighed["title"] == "RAM+ with weights · RAM Studio"
    assert weighed["og:description"].startswith("coding=0.5, tool=0 1: not tested with")
    assert "weights=coding" in weighed["og:url"]


def test_what_a_link_says_is_escaped_and_known(app_url: str) -> None:
    evil = '"><script>alert(1)</script>'
    text = httpx.get(app_url, params={"set": evil, "focus": evil, "other": evil}, timeout=60).text
    assert "<script>alert" not in text
    tags = _tags(app_url, set="shared-style", other="x")
    assert tags["og:url"] == f"{app_url}?set=shared-style"
    assert set(KEYS) >= {"set", "rule", "step", "lesson", "pin"}


@pytest.mark.parametrize("place", ["none/4.png", "dense/99999.png", "dense/-1.png", "dense/x.png"])
def test_there_is_no_picture_of_what_does_not_exist(app_url: str, place: str) -> None:
    assert httpx.get(f"{app_url}ram/preview/{place}", timeout=60).status_code == 404


def test_pictures_are_kept_and_few_are_drawn_a_minute(clock: Any) -> None:
    pictures = Pictures(most=2, a_minute=3, clock=clock)
    usual = outcomes_of(DEFAULT_SET).nearest(TuneSettings()).number
    first = pictures.picture(DEFAULT_SET, usual)
    others = [number for number in range(10) if number != usual]
    assert pictures.picture(DEFAULT_SET, others[0]) != first
    assert pictures.picture(DEFAULT_SET, usual) is first
    pictures.picture(DEFAULT_SET, others[1])
    # The third of this minute was the last: what was not drawn yet shows the usual one.
    assert pictures.picture(DEFAULT_SET, others[2]) == first
    clock.now += 61
    assert pictures.picture(DEFAULT_SET, others[2]) != first


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"set": "toy"}, "asks for the set 'toy', which does not exist. Known: shared-style"),
        ({"rule": "best"}, "asks for the method 'best'"),
        ({"step": "fly"}, "asks for the step 'fly'"),
        ({"lesson": "0"}, "asks for the scene '0'"),
        ({"lesson": "8"}, "asks for the scene '8', which does not exist. Known: 1 to 7, changed,"),
        ({"lesson": "sums"}, "asks for the scene 'sums'"),
        ({"epsilon": "small"}, "gives epsilon as 'small', which is not a number"),
        ({"epsilon": "1e999"}, "gives epsilon as '1e999', which is not from 0 to 1. The nearest"),
        ({"r": "-1"}, "gives r as '-1', which is not from 0 to 1. The nearest value is used."),
        ({"weights": "coding=1e308"}, "gives weights as 'coding=1e308'. Only numbers from"),
        ({"weights": "coding"}, "gives weights as 'coding'."),
        ({"pin": "frob~r=0.1"}, "asks for the method of A 'frob', which does not exist"),
        ({"pin": "ram+~r=9"}, "gives A's r as '9', which is not from 0 to 1. The nearest value"),
        ({"pin": "ram+~weights=tool"}, "gives A's weights as 'tool'."),
    ],
)
def test_an_unknown_link_says_so(query: dict[str, str], said: str) -> None:
    (told,) = unknown_parts(query)
    assert said in told
    assert unknown_parts({"set": "dense", "rule": "ram ", "r": "0.7", "weights": "tool=2 -1"}) == []


def test_a_link_puts_no_text_of_its_own_into_a_preview() -> None:
    for weights in ("Claim your prize at evil.example=1", "coding=0.5, <b>=1", "base=1"):
        said = preview_of({"set": DEFAULT_SET, "weights": weights}).description
        assert not any(text in said for text in ("prize", "<b>", "base="))


def test_a_named_scale_gives_way_as_it_does_in_tune() -> None:
    scaled = {"set": DEFAULT_SET, "scale": "0.5"}
    said = preview_of({**scaled, "rule": "task-arithmetic"})
    assert "at scale 0.5" in said.description
    for rule in ("sum", "average"):
        assert preview_of({**scaled, "rule": rule}) == said


def test_a_link_to_a_step_without_models_says_so() -> None:
    (told,) = unknown_parts({"step": "check"}, has_models=False)
    assert told.startswith("This link opens Check, but no models are loaded.")
    for query in ({"step": "history"}, {"step": "tune", "lesson": "1"}, {}):
        assert unknown_parts(query, has_models=False) == []
    assert unknown_parts({"step": "check"}) == []


def test_a_broken_installation_has_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    from ram_studio.app.landing import preview
    from ram_studio.errors import CheckpointError

    def missing(name: str) -> None:
        raise CheckpointError(name)

    monkeypatch.setattr(preview, "outcomes_of", missing)
    assert all(preview_of({"set": name}).picture is None for name in TITLES)


def test_a_page_says_what_its_link_asks_in_vain(app_url: str) -> None:
    async def story() -> str:
        async with HttpUser(app_url) as user:
            await user.open("?set=toy&rule=best&step=merge")
            return unescape(str(user.shows("link-note")))

    said = tell(story())
    assert said.count('class="callout') == 3
    assert "no models are loaded" in said
    assert "'toy'" in said
