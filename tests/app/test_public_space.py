"""On a public Space: Hub ids only, and no place of this machine is shown or served."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from visitor import RefusedError, Visitor, tell

from ram_studio.resources import asset_path

gradio_client = pytest.importorskip("gradio_client")


@pytest.fixture(scope="module")
def client(space_url: str):
    client = gradio_client.Client(space_url, verbose=False)
    yield client
    client.close()


@pytest.mark.parametrize("base", ["/etc", "assets/example/base", "../x/y", "~/models"])
def test_folders_are_refused(client, base: str) -> None:
    with pytest.raises(Exception, match="not a Hub id"):
        client.predict(base, {"a": "owner/name"}, api_name="/analyze")


def test_settings_that_name_folders_are_refused(client) -> None:
    with pytest.raises(Exception, match="does not open"):
        client.predict(method="fisher", settings={"files": "/etc"}, api_name="/merge")


def test_answers_name_no_folder(client) -> None:
    merged = client.predict(method="ram", api_name="/merge")
    scores = client.predict(models=["coding", merged["merge"]], limit=2, api_name="/evaluate")
    table = client.predict(rows=["ram"], limit=1, api_name="/compare")
    assert "/" not in merged["out"]
    for text in (json.dumps(merged), json.dumps(scores), json.dumps(table)):
        assert str(asset_path("example").parent) not in text
        assert "/tmp" not in text


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd",
        "gradio_api/file=app.log",
        "monitoring/summary",
        "ram/presets.json",
        "ram/..%2f..%2fapp.py",
    ],
)
def test_files_and_statistics_of_the_machine_are_not_served(space_url: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(space_url + path, timeout=120)
    assert caught.value.code in (401, 403, 404)
    caught.value.close()


def test_forty_hostile_sweeps_do_not_keep_a_visitor_from_the_example(space_url: str) -> None:
    async def story() -> None:
        async with Visitor(space_url, "127.0.0.77") as bot, Visitor(space_url) as visitor:
            await bot.open()
            (sweep,) = (e for e in bot.config["dependencies"] if e["api_name"] == "sweep")
            asks = [{"r": "0:0.5:6"}, "example", {}, ["demo"], 100, 30.0, "grid", 12]
            body = {"data": asks, "fn_index": sweep["id"], "session_hash": bot.hash}
            await asyncio.gather(*(bot.join(body) for _ in range(40)))
            # Bounded by the client's own time-out alone: the machine may have much else to do.
            await visitor.open()
            await visitor.press("use-example")
            await visitor.press("draw-details")
            with pytest.raises(RefusedError, match=r"is the most.* duplicate this Space"):
                await bot.call("sweep", over={"r": "0:0.5:6"}, items=100)
            merged = await visitor.call("merge", method="ram")
            assert merged["merge"].startswith("ram"), "and the visitor's merge has its turn"

    tell(story())


@pytest.mark.browser
def test_the_form_asks_for_hub_ids(browser, space_url: str) -> None:
    page = browser.new_page()
    page.goto(space_url)
    page.click("#own-models > button")
    # The form is mounted when it opens; what is typed into a half-mounted box is lost.
    page.wait_for_timeout(400)
    page.fill("#base input, #base textarea", "/etc")
    page.fill("#agent-source-1 input, #agent-source-1 textarea", "owner/name")
    page.click("#analyze")
    page.wait_for_selector("#load-status .callout[data-tone=bad]")
    assert "not a Hub id" in page.text_content("#load-status")
    page.close()
