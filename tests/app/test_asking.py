"""What can be asked and how, in Check, Compare and the sweep: plans, choices, what is grayed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from app_parts import built
from chat_model import make_chat_model
from loopback_hub import Repository, serving

from ram_studio.app.asking.limits import code_refusal, count_answers, offered_lengths, read_settings
from ram_studio.app.asking.suites import USUAL
from ram_studio.app.check.panel import CheckPanel
from ram_studio.app.experiment.panel import ComparePanel
from ram_studio.app.experiment.sweep_panel import SweepPanel
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.app.tune import own_test
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.chunks import ChunkSizes
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, offer_suite
from ram_studio.evals.suites.published import math500
from ram_studio.evals.until import Until

ROW = {"problem": "Two and two?", "answer": "4", "subject": "Sums"}


PUBLIC = Settings.from_environment(host="0.0.0.0", environ={})


@pytest.mark.parametrize(
    ("suite", "more", "text"),
    [
        ("", {}, "No suite is chosen"),
        ("instructions", {"limit": {"instructions": 65}}, "is 65; it must be from 1 to 48"),
        ("tool", {"limit": {"tool": None}}, "for tool is None"),
        ("demo", {"limit": {"demo": 301}}, "from 1 to 300"),
        ("memory", {"lengths": (7,)}, "needs a prompt length"),
        ("math", {"think_tokens": -1}, "think_tokens is -1; choose at least 0"),
        ("math", {"max_tokens": 40000}, "max_tokens is 40000; choose at most 32768"),
        ("math", {"temperature": 3}, "temperature is 3; choose 0 to 2"),
        ("math", {"top_p": 0}, "top_p is 0"),
        ("math", {"samples": 5, "temperature": 1}, "samples is 5; choose at most 4"),
        ("math", {"difficulty": 6}, "difficulty is 6; choose 1 to 5"),
        ("math", {"ci_width": 9, "limit": 400}, "limit is 400; choose at most 200"),
        ("instructions", {"ci_width": 10}, "Only generated suites"),
    ],
)
def test_what_cannot_be_asked_here_is_refused_in_words(suite, more, text) -> None:
    with pytest.raises(RamStudioError, match=text):
        read_settings({"suites": [suite], **more}, PUBLIC)


def test_settings_are_as_usual_where_nothing_is_said() -> None:
    def made(**given):
        return read_settings({"suites": ["math"], **given}, Settings())

    usual = EvalSettings(suites="math", lengths=(1000,))
    assert made(max_tokens=None, seed="", data="", lengths=[]) == usual
    assert made(max_tokens=64, think_tokens=512).decodings[0].think_tokens == 512
    until = made(suites=["math"], ci_width=10)
    assert (until.limit, until.until) == (1600, Until(0.1, 1600))


def test_a_space_offers_less_and_runs_no_code(monkeypatch) -> None:
    space = Settings.from_environment(environ={"SPACE_ID": "a/b"})
    assert max(offered_lengths(space)) == 4000
    with pytest.raises(SettingsError, match="from 1 to 24"):
        read_settings({"suites": ["instructions"], "limit": {"instructions": 30}}, space)
    monkeypatch.setenv("SPACE_ID", "a/b")
    assert "public Space" in code_refusal()


def test_only_settings_with_an_effect_are_shown(check_panel) -> None:
    form, made = check_panel.form, ["math", "tool"]

    def shown(*suites):
        seen = form.show(suites)
        return {n for n, box in form.boxes.items() if seen.get(box, {}).get("visible") is True}

    # Other wordings are the shipped suites'.
    assert shown("gsm8k") == {"max_tokens", "think_tokens"}
    budget = {"max_tokens", "think_tokens", "paraphrases"}
    assert shown("demo") == set()
    assert shown("code") == budget
    assert shown("code", *made) == budget | {"difficulty"}
    assert shown(*made) == budget | {"difficulty", "ci_width", "limit"}
    assert shown("memory") == budget | {"mode"}
    data = {form.boxes["samples"]: 4, form.boxes["ci_width"]: 5, form.boxes["seed"]: 7}
    # What is hidden has no say, whatever stands in it.
    assert form.read(data, ["demo"]) == {"temperature": None, "seed": 7}
    data[form.boxes["temperature"]] = 0.5
    drawn = {"temperature": 0.5, "top_p": None, "samples": 4, "seed": 7}
    assert form.read(data, ["demo"]) == drawn
    assert form.read(data, made) == {
        **drawn,
        **dict.fromkeys(["max_tokens", "think_tokens", "difficulty", "limit", "paraphrases"]),
        "ci_width": 5,
    }


def test_wordings_cost_answers_of_the_suites_that_have_them() -> None:
    asked = EvalSettings(suites="math,gsm8k", limit=10, paraphrases=3, temperature=1, samples=2)
    assert count_answers(asked) == 10 * (2 + 2) + 10 * 2


def test_boxes_have_the_titles_and_ranges_of_the_settings(check_panel) -> None:
    boxes = check_panel.form.boxes
    fields = EvalSettings.model_fields
    assert all(box.label == fields[name].title for name, box in boxes.items())
    assert (boxes["temperature"].minimum, boxes["temperature"].maximum) == (0, 2)
    assert (boxes["top_p"].minimum, boxes["top_p"].maximum) == (0.05, 1)
    assert (boxes["samples"].maximum, boxes["difficulty"].value) == (16, 2)
    assert (boxes["max_tokens"].value, boxes["max_tokens"].minimum) == (None, 1)


def test_suites_beyond_the_context_are_not_offered(
    check_panel, session, workspace, tmp_path
) -> None:
    panel = check_panel
    shown = panel._show_kind("general", session)
    assert [name for _, name in shown[panel.suites]["choices"]] == ["health"]
    grayed = str(shown[panel.unavailable])
    assert re.search(
        r"disabled> Mathematics</label>: its shortest question takes \d+ token", grayed
    )
    assert "the context has 256" in grayed
    folder = make_chat_model(tmp_path / "chat", context=1400)
    session.load(replace(session.loaded, base=str(folder), set_name=None))
    shown = panel._show_kind("general", session)
    assert "tool" in (offer_suite := [name for _, name in shown[panel.suites]["choices"]])
    assert ("memory" in offer_suite, shown[panel.lengths]["visible"]) == (True, "hidden")
    assert panel._show_items(["memory"])[panel.lengths]["visible"] is True
    # The same suites are what Test now asks of models that nobody asked anything.
    questions = own_test.questions_to_ask(session, workspace)
    assert (questions.suites, questions.limit) == (("tool", "math", "instructions"), 20)
    # What is left is not here, folded, each with what to do.
    grayed = str(shown[panel.unavailable])
    # Eleven functions and a conversation about them take more.
    (told,) = re.findall(r"<summary[^>]*>(.*?)</summary>", grayed, re.S)
    assert re.fullmatch(
        r"\d+ suites are not offered: 1 too long for these models, \d+ not on this machine\.",
        " ".join(told.split()),
    )
    assert "Tool loop</label>" in grayed
    assert "GSM8K</label>: its questions are not on this machine" in grayed
    assert "--data FOLDER" in grayed


def test_suites_are_offered_once_their_questions_are_here(session, workspace):
    about = "whatever it asks"
    known = ALL_SUITES["memory"]
    there = replace(known, name="extra", title="Extra", about=about)
    away = replace(known, name="away", title="Away", absent=lambda data: "not on this machine")
    with offer_suite(there), offer_suite(away):
        panel = built(CheckPanel, workspace)
        names = [name for _, name in panel.suites.choices]
        assert "extra" in names
        assert "away" not in names
        assert (
            "Away</label>: not on this machine"
            in panel._show_kind("general", session)[panel.unavailable]
        )
        assert panel.items["extra"].label == "Questions for extra"
        # Its texts have lengths, as those of memory.
        assert panel._show_items(["extra"])[panel.lengths]["visible"] is True
        with pytest.raises(SettingsError, match="Suite extra needs a prompt length"):
            read_settings({"suites": ["extra"]}, workspace.settings)
        public = replace(workspace.settings, is_space=True)
        with pytest.raises(SettingsError, match="Suite away is not offered here"):
            read_settings({"suites": ["away"], "lengths": [1000]}, public)


@pytest.fixture(scope="module")
def experiments(tmp_path_factory) -> tuple[ComparePanel, SweepPanel]:
    workspace = Workspace(Settings(work_dir=tmp_path_factory.mktemp("page")))
    return built(ComparePanel, workspace), built(SweepPanel, workspace)


def test_experiments_are_asked_by_the_same_form_as_a_check(
    experiments, check_panel, session
) -> None:
    for panel in experiments:
        asked, boxes = panel.questions, panel.questions.settings.boxes
        assert boxes.keys() == check_panel.form.boxes.keys()
        form = {asked.choice.box: ["math"], boxes["temperature"]: 1, boxes["samples"]: 2}
        form |= {boxes["ci_width"]: 10, boxes["limit"]: 100, boxes["difficulty"]: 3}
        read = asked.read(form, 30)
        assert read.until == Until(0.1, 100)
        assert (read.samples, read.difficulty) == (2, 3)
        assert count_answers(read) == 200
        assert asked.read({asked.choice.box: ["math"]}, 30).limit == 30
        texts = {asked.choice.box: ["memory"], asked.choice.lengths: [1000]}
        texts[boxes["mode"]] = "memagent"
        assert asked.read(texts, 30).chunk_sizes == ChunkSizes()
        with pytest.raises(SettingsError, match="No suite is chosen"):
            asked.read({}, 30)
        # A context too short for a suite grays it here too, before anything is started.
        grayed = asked.offer(["demo"], session)
        assert [name for _, name in grayed[asked.choice.box]["choices"]] == ["demo"]
        assert "the context has 256" in grayed[asked.choice.grayed]


def test_example_skills_are_not_asked_of_other_models(experiments, session, tmp_path) -> None:
    folder = make_chat_model(tmp_path / "chat", context=2048)
    session.load(replace(session.loaded, base=str(folder), set_name=None))
    for panel in experiments:
        assert panel.questions.offer(["demo"], session)[panel.questions.choice.box][
            "value"
        ] == list(USUAL)
    # And general suites that nobody chose are not asked of the example.
    session.load(load_set("shared-style"))
    for panel in experiments:
        assert panel.questions.offer(list(USUAL), session)[panel.questions.choice.box]["value"] == [
            "demo"
        ]


def test_data_sets_come_from_a_folder_or_the_hub_locally(
    session, workspace, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = make_chat_model(tmp_path / "chat", context=2048)
    session.load(replace(session.loaded, base=str(folder), set_name=None))
    panel = built(CheckPanel, workspace)
    given, box = panel.data_sets, panel.suites

    def here(updates) -> bool:
        return "math500" in [name for _, name in updates[box]["choices"]]

    assert "is not a folder" in given.set_folder("/nowhere", session)[given.controls.status]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "math500.jsonl").write_text(json.dumps(ROW))
    shown = given.set_folder(str(tmp_path / "rows"), session)
    assert here(shown)
    assert "nq" in [name for _, name in shown[given.pick]["choices"]]
    plan = panel._read(
        {panel.kind: "general", box: ["math500"], panel.items["math500"]: 1}, session
    )
    assert plan.data == tmp_path / "rows"
    assert not here(given.set_folder("", session))
    content = json.dumps(ROW).encode()
    with serving() as hub:
        commits = {"f" * 40: {}, math500.DATA.revision: {math500.DATA.file: content}}
        known = Repository(commits, {"main": "f" * 40})
        hub.repositories[f"datasets/{math500.DATA.repository}"] = known
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        *_, last = given.run({given.pick: "math500"}, session)
        assert "MATH-500 was downloaded" in last[given.controls.status]
        assert here(last)
        *_, last = given.run({given.pick: "nq"}, session)
        assert "Suite nq has no questions here" in last[given.controls.status]
    public = Workspace(Settings.from_environment(host="0.0.0.0", environ={}))
    assert built(CheckPanel, public).data_sets is None
    with pytest.raises(SettingsError, match="does not open data folders"):
        read_settings({"suites": ["math"], "data": str(tmp_path)}, public.settings)
    public.close()
