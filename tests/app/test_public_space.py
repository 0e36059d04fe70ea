"""On a public Space: Hub ids only, and no place of this machine is shown or served."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from ram_studio.resources import asset_path

gradio_client = pytest.importorskip("gradio_client")


@pytest.fixture(scope="module")
def client(space_url: str):
    client = gradio_client.Client(space_url, verbose=False)
    yield client
    client.close()


def test_folders_are_refused_also_in_settings(client) -> None:
    for base in ("/etc", "assets/independent/base", "../x/y", "~/models"):
        with pytest.raises(Exception, match="not a Hub id"):
            client.predict(base, {"a": "owner/name"}, api_name="/analyze")
    with pytest.raises(Exception, match="does not open"):
        client.predict(method="fisher", settings={"files": "/etc"}, api_name="/merge")


def test_answers_name_no_folder(client) -> None:
    merged = client.predict(method="ram", api_name="/merge")
    scores = client.predict(models=["coding", merged["merge"]], limit=2, api_name="/evaluate")
    table = client.predict(rows=["ram"], limit=1, api_name="/compare")
    assert "/" not in merged["out"]
    for text in (json.dumps(merged), json.dumps(scores), json.dumps(table)):
        assert str(asset_path("independent").parent) not in text
        assert "/tmp" not in text


def test_a_shared_page_offers_no_api_in_its_footer(space_url: str) -> None:
    with urllib.request.urlopen(space_url + "config", timeout=120) as answer:
        config = json.load(answer)
    assert config["footer_links"] == ["gradio"]
    # What Gradio's page speaks after each event.
    assert config["i18n_translations"]["en"]["common.complete"] == "Done"


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
