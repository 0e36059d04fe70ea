"""What can be asked and how, in Check, Compare and the sweep: plans, choices, what is greyed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from app_parts import built

from ram_studio.app.asking import plan as asking
from ram_studio.app.asking.suites import USUAL
from ram_studio.app.check.panel import CheckPanel
from ram_studio.app.experiment.panel import ComparePanel
from ram_studio.app.experiment.sweep_panel import SweepPanel
from ram_studio.app.settings import Settings
from ram_studio.app.workspace import Workspace
from ram_studio.errors import SettingsError
from ram_studio.evals.pieces import Pieces
from ram_studio.evals.suites import ALL_SUITES, offered
from ram_studio.evals.suites.published import math500
from ram_studio.evals.until import Until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "evals"))
from chat_model import make_chat_model
from loopback_hub import Repository, serving

ROW = {"problem": "Two and two?", "answer": "4", "subject": "Sums"}


PUBLIC = Settings.from_environment(host="0.0.0.0", environ={})


@pytest.mark.parametrize(
    ("suite", "more", "text"),
    [
        ("", {}, "No suite is chosen"),
        ("tool", {"limits": {"tool": 65}}, "for tool is 65; it must be from 1 to 64"),
        ("tool", {"limits": {"tool": None}}, "for tool is None"),
        ("demo", {"limits": {"demo": 301}}, "from 1 to 300"),
        ("memory", {"lengths": (7,)}, "needs a prompt length"),
        ("math", {"how": {"think_tokens": -1}}, "tokens of thinking are -1"),
        ("math", {"how": {"temperature": 3}}, "temperature is 3; choose 0 to 2"),
        ("math", {"how": {"top_p": 0}}, "top-p is 0"),
        ("math", {"how": {"samples": 5}}, "samples is 5; choose 1 to 4"),
        ("math", {"how": {"difficulty": 6}}, "difficulty is 6"),
        ("math", {"how": {"most": 400}}, "until decided are 400; choose 50 to 200"),
        ("math", {"how": {"until": 10}}, "Only suites made to order"),
    ],
)
def test_what_cannot_be_asked_here_is_refused_in_words(suite, more, text) -> None:
    with pytest.raises(SettingsError, match=text):
        asking.asked_of([suite], **{"lengths": (), "settings": PUBLIC, **more})


def test_how_to_ask_is_as_usual_where_nothing_is_said() -> None:
    def made(**how):
        return asking.asked_of(["math"], (), Settings(), how).how

    assert made(max_tokens=None, seed="") == asking.How(most=1600)
    assert made().settings["max_tokens"] is None
    assert made(max_tokens=64, think_tokens=512).settings["decoding"].think_tokens == 512


def test_a_space_offers_less_and_runs_no_code(monkeypatch) -> None:
    space = Settings.from_environment(environ={"SPACE_ID": "a/b"})
    assert max(asking.offered_lengths(space)) == 4000
    with pytest.raises(SettingsError, match="from 1 to 24"):
        asking.asked_of(["math"], (), space, {}, {"math": 30})
    monkeypatch.setenv("SPACE_ID", "a/b")
    assert "public Space" in asking.code_refusal()


def test_only_what_has_an_effect_is_shown_of_how_to_ask(workspace) -> None:
    panel = built(CheckPanel, workspace)
    how, made = panel.how, ["math-made", "tool-made"]

    def shown(kind, suites):
        seen = how.show(kind, suites).items()
        return {n for n, box in how.boxes.items() if dict(seen).get(box, {}).get("visible") is True}

    budget = {"max_tokens", "think_tokens"}
    assert shown("demo", made) == set()
    assert shown("general", ["math"]) == budget
    assert shown("general", ["math", *made]) == budget | {"difficulty"}
    assert shown("general", made) == budget | {"difficulty", "until", "most"}
    assert shown("general", ["memory"]) == budget | {"mode"}
    form = {how.boxes["samples"]: 4, how.boxes["until"]: 5, how.boxes["seed"]: 7}
    # What is hidden has no say, whatever stands in it.
    assert how.read(form, "demo", made) == {"temperature": None, "seed": 7}
    form[how.boxes["temperature"]] = 0.5
    drawn = {"temperature": 0.5, "top_p": None, "samples": 4, "seed": 7}
    assert how.read(form, "demo", ()) == drawn


def test_suites_that_the_context_has_no_room_for_are_not_offered_and_why_is_said(
    session, workspace, tmp_path
) -> None:
    panel = built(CheckPanel, workspace)
    shown = panel._show_kind("general", session)
    assert [name for _, name in shown[panel.suites]["choices"]] == ["health"]
    greyed = str(shown[panel.misfits])
    assert "disabled> Mathematics</label>: its shortest question takes 493 tokens" in greyed
    assert "the context has 256" in greyed
    folder = make_chat_model(tmp_path / "chat", context=1400)
    session.load(replace(session.loaded, base=str(folder), example=None))
    shown = panel._show_kind("general", session)
    assert "tool" in (offered := [name for _, name in shown[panel.suites]["choices"]])
    assert ("memory" in offered, shown[panel.lengths]["visible"]) == (True, "hidden")
    assert panel._show_items(["memory"])[panel.lengths]["visible"] is True
    # What is left is not here, folded, each with what to do.
    greyed = str(shown[panel.misfits])
    assert "Too long" not in greyed
    assert "GSM8K</label>: its questions are not on this machine" in greyed
    assert "--data FOLDER" in greyed


def test_suites_are_offered_from_the_registry_once_their_questions_are_here(session, workspace):
    about = "whatever it asks"
    known = ALL_SUITES["memory"]
    there = replace(known, name="extra", title="Extra", about=about)
    away = replace(known, name="away", title="Away", absent=lambda data: "not on this machine")
    with offered(there), offered(away):
        panel = built(CheckPanel, workspace)
        names = [name for _, name in panel.suites.choices]
        assert "extra" in names
        assert "away" not in names
        assert (
            "Away</label>: not on this machine"
            in panel._show_kind("general", session)[panel.misfits]
        )
        assert panel.items["extra"].label == "Questions for extra"
        # Its texts have lengths, as those of memory.
        assert panel._show_items(["extra"])[panel.lengths]["visible"] is True
        with pytest.raises(SettingsError, match="Suite extra needs a prompt length"):
            asking.asked_of(["extra"], (), workspace.settings)
        public = replace(workspace.settings, is_space=True)
        with pytest.raises(SettingsError, match="Suite away is not offered here"):
            asking.asked_of(["away"], (1000,), public)


@pytest.fixture(scope="module")
def experiments(tmp_path_factory) -> tuple[ComparePanel, SweepPanel]:
    workspace = Workspace(Settings(work_dir=tmp_path_factory.mktemp("page")))
    return built(ComparePanel, workspace), built(SweepPanel, workspace)


def test_experiments_are_asked_by_the_same_form_as_a_check(experiments, workspace, session) -> None:
    check = built(CheckPanel, workspace)
    for panel in experiments:
        asked, boxes = panel.asked, panel.asked.how.boxes
        assert boxes.keys() == check.how.boxes.keys()
        form = {asked.choice.box: ["math-made"], boxes["temperature"]: 1, boxes["samples"]: 2}
        form |= {boxes["until"]: 10, boxes["most"]: 100, boxes["difficulty"]: 3}
        read = asked.read(form)
        assert read.settings["until"] == Until(0.1, 100)
        assert (read.settings["samples"], read.settings["difficulty"]) == (2, 3)
        assert read.answers(30) == 200
        texts = {asked.choice.box: ["memory"], asked.choice.lengths: [1000]}
        texts[boxes["mode"]] = "memagent"
        assert asked.read(texts).settings["pieces"] == Pieces()
        with pytest.raises(SettingsError, match="No suite is chosen"):
            asked.read({})
        # A context too short for a suite greys it here too, before anything is started.
        greyed = asked.offer(["demo"], session)
        assert [name for _, name in greyed[asked.choice.box]["choices"]] == ["demo"]
        assert "the context has 256" in greyed[asked.choice.greyed]


def test_the_skills_of_the_example_are_not_asked_of_other_models_at_first(
    experiments, session, tmp_path
) -> None:
    folder = make_chat_model(tmp_path / "chat", context=2048)
    session.load(replace(session.loaded, base=str(folder), example=None))
    for panel in experiments:
        assert panel.asked.offer(["demo"], session)[panel.asked.choice.box]["value"] == list(USUAL)


def test_data_sets_come_from_a_folder_or_the_hub_on_ones_own_machine(
    session, workspace, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = make_chat_model(tmp_path / "chat", context=2048)
    session.load(replace(session.loaded, base=str(folder), example=None))
    panel = built(CheckPanel, workspace)
    given, box = panel.data_sets, panel.suites

    def here(updates) -> bool:
        return "math500" in [name for _, name in updates[box]["choices"]]

    assert "is no folder" in given.set_folder("/nowhere", session)[given.controls.status]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "math500.jsonl").write_text(json.dumps(ROW))
    shown = given.set_folder(str(tmp_path / "rows"), session)
    assert here(shown)
    assert "nq" in [name for _, name in shown[given.pick]["choices"]]
    plan = panel._read(
        {panel.kind: "general", box: ["math500"], panel.items["math500"]: 1}, session
    )
    assert plan.how.settings["data"] == str(tmp_path / "rows")
    assert not here(given.set_folder("", session))
    content = json.dumps(ROW).encode()
    with serving() as hub:
        commits = {"f" * 40: {}, math500.DATA.revision: {math500.DATA.file: content}}
        known = Repository(commits, {"main": "f" * 40})
        hub.repositories[f"datasets/{math500.DATA.repository}"] = known
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        *_, last = given.run({given.pick: "math500"}, session)
        assert "MATH-500 is here now" in last[given.controls.status]
        assert here(last)
        *_, last = given.run({given.pick: "nq"}, session)
        assert "Suite nq has no questions here" in last[given.controls.status]
    public = Workspace(Settings.from_environment(host="0.0.0.0", environ={}))
    assert built(CheckPanel, public).data_sets is None
    with pytest.raises(SettingsError, match="not opened by this public app"):
        asking.asked_of(["math"], (), public.settings, {"data": str(tmp_path)})
    public.close()
