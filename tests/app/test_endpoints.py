"""The named endpoints over HTTP, as gradio_client calls them."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from http_user import HttpUser, RefusedError, tell

from ram_studio.app.api import asking
from ram_studio.app.api.arguments import Client
from ram_studio.app.check import work as check_work
from ram_studio.app.session.sets import load_set
from ram_studio.errors import SettingsError
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path

with pytest.MonkeyPatch.context() as patch:
    # httpx's bundled command line is imported with gradio_client; nothing of it is used.
    gradio_client = pytest.importorskip("gradio_client")


@pytest.fixture(scope="module")
def client(app_url: str):
    client = gradio_client.Client(app_url, verbose=False)
    yield client
    client.close()


def test_the_endpoints_are_public_and_documented(client) -> None:
    info = client.view_api(return_format="dict", print_info=False)
    named = info["named_endpoints"]
    assert set(named) == {"/analyze", "/preview", "/merge", "/evaluate", "/compare", "/sweep"}
    names = [p["parameter_name"] for p in named["/preview"]["parameters"]]
    assert names == ["analysis", "epsilon", "rule", "r", "alpha", "agents", "by"]


def test_preview_is_the_analysis_s(client) -> None:
    answer = client.predict(epsilon=1e-5, rule="ram+", r=0.1, alpha=2.0, api_name="/preview")
    assert answer == load_set("shared-style").analysis.preview()
    answer = client.predict(
        analysis="dense", epsilon=0, rule="ram+s", agents=["tool", "coding"], api_name="/preview"
    )
    expected = load_set("dense").analysis.select(["tool", "coding"]).preview(0, "ram+s")
    assert answer == expected


NONE = {"base": "/nowhere", "agents": {"a": "/nowhere"}}
BASE = {"models": ["base"], "limit": 2}


@pytest.mark.parametrize(
    ("endpoint", "arguments", "text"),
    [
        ("preview", {"rule": "ram++"}, "ram\\+\\+"),
        ("preview", {"epsilon": -1}, "epsilon is -1"),
        ("preview", {"epsilon": "much"}, "much"),
        ("preview", {"epsilon": 10**400}, "must be a number"),
        ("preview", {"agents": ["nobody"]}, "nobody"),
        ("preview", {"analysis": "mine"}, "no analysis 'mine'"),
        ("preview", {"by": "weekday"}, "weekday"),
        ("analyze", NONE, "/nowhere"),
        ("merge", {"method": "blend"}, "blend"),
        ("merge", {"method": "ram", "settings": {"temperature": 1}}, "temperature"),
        ("merge", {"other_base": "no"}, "other_base is 'no'; it must be true or false"),
        ("evaluate", {**BASE, "suites": ["chess"]}, "no suite 'chess'"),
        # The example's context has no room for them.
        (
            "evaluate",
            {**BASE, "suites": ["health", "instructions"]},
            "instructions cannot be asked",
        ),
        ("evaluate", {**BASE, "suites": ["code"], "ci_width": 10}, "Only generated suites"),
        ("compare", {"rows": ["blend"]}, "no row 'blend'"),
        ("compare", {"rows": []}, "No method is chosen"),
        ("compare", {"preset": "everything"}, "no preset 'everything'"),
        ("evaluate", {**BASE, "temperature": 3}, "temperature is 3; choose 0 to 2"),
        ("compare", {"limit": 0}, "limit is 0"),
        ("evaluate", {**BASE, "limit": 2.5}, "limit is 2.5; it must be a whole number"),
        ("evaluate", {**BASE, "suites": ["memory"], "lengths": ["abc"]}, "no prompt length 'abc'"),
        ("evaluate", {**BASE, "lengths": 0}, "lengths must be a list"),
        ("evaluate", {**BASE, "data": "x" * 5000}, "is not a folder"),
        ("preview", {"r": 1e308}, "r is 1e[+]308; it must be from 0 to 100"),
        ("compare", {"samples": 2}, "Give a temperature"),
        ("compare", {"settings": {"r": -1}}, "r is -1"),
        ("compare", {"settings": {"files": "/etc"}}, "files"),
        ("sweep", {"over": {"fisher.files": ["/etc"]}}, "no method 'fisher' here"),
        ("sweep", {"over": {"method": ["fisher"], "files": ["/etc"]}}, "no method 'fisher' here"),
        ("sweep", {"over": {"gamma": "0:1:3"}}, "No method has a setting 'gamma'"),
        ("sweep", {"over": {"r": "0:1:99"}}, "the budget is 60"),
        ("sweep", {"suites": ["health"]}, "'health' cannot be asked here"),
        ("sweep", {"limit": 1000}, "limit is 1000"),
        ("sweep", {"trials": 0, "search": "optuna"}, "trials is 0"),
        ("sweep", {"search": "luck"}, "grid, optuna or slim"),
        ("sweep", {"minutes": -1}, "-1"),
    ],
)
def test_what_is_wrong_comes_back_as_one_sentence(client, endpoint, arguments, text) -> None:
    with pytest.raises(Exception, match=text):
        client.predict(**arguments, api_name=f"/{endpoint}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder whose name messages repeat whole: they cut names at 80 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_no_request_loads_a_method_of_ones_own(app_url: str, short_folder: Path) -> None:
    """Such a file is a program: each way in refuses it, by what it names."""
    mark, file = short_folder / "mark", short_folder / "evil.py"
    file.write_text(f"open({str(mark)!r}, 'w')")
    method = f"{file}:EVIL"
    agents = "".join(f"  {name}: /nowhere\n" for name in load_set("shared-style").agents)
    recipe = f"base: /nowhere\nagents:\n{agents}method: {method}\n"
    said: dict[str, str] = {}

    async def refused(what: str, request: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(RefusedError) as caught:
            await request
        said[what] = str(caught.value)

    async def story() -> None:
        async with HttpUser(app_url) as user:
            await user.open(f"?set=shared-style&rule={method}&r=0.3&pin={method}~r=1")
            said["link"] = str(user.shows("settings"))
            await refused("merge", user.call("merge", method=method))
            await refused("preview", user.call("preview", rule=method))
            await refused("rows", user.call("compare", rows=[method]))
            await refused("preset", user.call("compare", preset=method))
            await refused("axis", user.call("sweep", over={"method": [method]}))
            await refused("setting", user.call("sweep", over={f"{method}.scale": [1]}))
            usual = user.shows("method")
            user.fill("method", method)
            await refused("form", user.press("merge"))
            user.fill("method", usual)
            user.fill("settings", json.dumps({"method": method, "r": 0.5}))
            await user.press("to-merge")
            said["tuned"] = str(user.shows("plan"))
            form = {"files": ("recipe.yaml", recipe.encode())}
            answer = (await user.http.post("gradio_api/upload", files=form)).raise_for_status()
            path = {"path": answer.json()[0], "orig_name": "recipe.yaml"}
            user.fill("load-recipe", {**path, "meta": {"_type": "gradio.FileData"}})
            await user.press("load-recipe")
            said["recipe"] = str(user.shows("recipe-status"))

    tell(story())
    assert not mark.exists()
    assert json.loads(said.pop("link")) == {"r": 0.3}, "the usual method stays"
    plan = said.pop("tuned")
    assert ("Writes about" in plan, "evil" in plan) == (True, False)
    assert {what: text for what, text in said.items() if "evil.py:EVIL" not in text} == {}


def test_own_folders_go_from_analysis_to_merge_to_scores(client, app_url: str) -> None:
    example = asset_path("independent")
    agents = {"coder": "coding", "tooler": "tool", "memory": "memory"}
    folders = {name: str(example / folder) for name, folder in agents.items()}
    answer = client.predict(str(example / "base"), folders, api_name="/analyze")
    assert answer["agents"] == list(agents)
    expected = load_set("independent").analysis.preview()["agents"]
    found = answer["preview"]["agents"]
    assert found == {name: expected[folder] for name, folder in agents.items()}

    merged = client.predict(
        analysis=answer["analysis"], method="ram", settings={"epsilon": 0.0}, api_name="/merge"
    )
    assert {"out", "method", "agents", "bytes_read", "bytes_written", "seconds"} <= set(merged)
    assert (Path(merged["out"]) / "model.safetensors").is_file()
    # What a page links to when a merge is too large for a zip; its neighbors stay closed.
    link = f"{app_url}gradio_api/file={merged['out']}/config.json"
    with urllib.request.urlopen(link, timeout=120) as served:
        assert b"qwen2" in served.read()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link.replace("/config.json", "/../../../../../etc/passwd"))
    caught.value.close()
    # To look at another set takes nothing away.
    client.predict(analysis="dense", api_name="/preview")
    models = ["base", "coder", merged["merge"]]
    asked = {"analysis": answer["analysis"], "models": models, "limit": 10}
    scores = client.predict(**asked, api_name="/evaluate")
    assert list(scores["models"]) == asked["models"]
    assert scores["models"]["coder"]["domains"]["code"]["n"] == 10
    verdicts = scores["verdicts"]
    assert [found["domain"] for found in verdicts] == ["code", "tool", "memory"]
    for found in verdicts:
        assert found["verdict"] in ("survived", "damaged", "inconclusive")
        assert found["p"] <= found["p_adjusted"]
        assert {"value", "low", "high", "reason"} == set(found["retained_gain"])
        # One agent was evaluated: it was not chosen by its answers.
        assert (found["specialist"], found["chosen_on"]) == ("coder", 0)


def test_an_analysis_named_as_a_set_is_ones_own(session, workspace) -> None:
    own = replace(load_set("independent"), title="dense", set_name=None)
    session.load(own)
    assert Client(workspace)._find_models("dense", session) is own


def test_a_cancelled_evaluation_ends_and_makes_room_for_the_next(client) -> None:
    job = client.submit(limit=300, api_name="/evaluate")
    while job.status().code.name != "PROCESSING":
        assert not job.done()
        time.sleep(0.05)
    job.cancel()
    scores = client.predict(models=["base"], limit=5, api_name="/evaluate")
    assert scores["models"]["base"]["domains"]["code"]["n"] == 5
    # It did not run to its end: the last model would have answered 300 questions of each skill.
    with AnswerStore() as store:
        assert all(run.answered < 4 * 300 for run in store.runs() if run.model == "memory")


def test_methods_are_compared_without_a_folder(client) -> None:
    rows = ["average", "ties", "ram+"]
    table = client.predict(rows=rows, settings={"r": 0.2}, limit=5, api_name="/compare")
    assert table["reference"] == "ram+ (r 0.2)"
    names = [row["label"] for row in table["rows"]]
    sources = ["base", "coding", "tool", "memory"]
    assert names[:-1] == [*sources, "average", "ties", "ram+ (r 0.2)"]
    assert names[-1].removeprefix("norm-matched ") in sources[1:]
    last = table["rows"][-2]
    assert last["settings"]["r"] == 0.2
    assert last["domains"]["code"]["n"] == 5
    asked = load_set("shared-style").analysis.preview(r=0.2)["agents"]["coding"]["lambda"]
    assert last["agents"]["coding"]["lambda"] == pytest.approx(asked)
    assert table["rows"][0]["versus"]["outcome"] in ("better", "worse", "inconclusive")


def test_settings_are_swept_and_the_winner_checked(client) -> None:
    answer = client.predict(over={"r": [0, 0.4]}, limit=3, api_name="/sweep")
    assert answer["ending"] == "done"
    assert answer["settings"] == 3  # and where it started
    assert answer["winner"] in [row["label"] for row in answer["rows"]]
    assert answer["recheck"]["winner"]["n"] == answer["held_out"]
    assert any("optimistic" in text for text in answer["statements"])


def test_draws_and_health_are_asked_for_by_name(client) -> None:
    how = {"temperature": 1.0, "top_p": 0.95, "samples": 2, "limit": 1, "seed": 5}
    drawn = client.predict(models=["base"], **how, api_name="/evaluate")
    assert drawn["models"]["base"]["domains"]["code"]["samples"]["samples"] == 2
    assert (drawn["seed"], drawn["reproducibility"]["seed"], drawn["verdicts"]) == (5, 5, [])
    answer = client.predict(models=["base", "tool"], suites=["health"], api_name="/evaluate")
    assert answer["suite"] == "health"
    assert answer["models"]["tool"]["health"]["kl_to_base"] > 0


def test_another_name_for_this_machine_opens_nothing(app_url: str) -> None:
    port = urlsplit(app_url).port
    names = {"localhost": 200, "127.0.0.1": 200, "foreign.localhost": 403, "evil.example.org": 403}
    for name, status in {**names, "localhost.": 403, "0.0.0.0": 403}.items():
        headers = {"host": f"{name}:{port}"}
        assert httpx.get(f"{app_url}ram/page.js", headers=headers).status_code == status, name


def test_verdicts_are_of_the_agents_that_were_asked(workspace, session, monkeypatch) -> None:
    def score_work(chosen, settings, session, workspace):
        # Meanwhile another request of this client loads other models.
        return lambda report, cancel: session.load(replace(session.models, agents={"other": "x"}))

    def judge(found, agents, margin):
        raise SettingsError(f"judged by {', '.join(agents)}")

    monkeypatch.setattr(workspace, "session_of", lambda *_: session)
    monkeypatch.setattr(check_work, "score_work", score_work)
    monkeypatch.setattr(asking, "judge_merges", judge)
    ask = asking.AskingEndpoints(workspace).evaluate(None, models=["base"], limit=1)
    with pytest.raises(SettingsError, match="judged by coding, tool, memory"):
        tell(ask)
