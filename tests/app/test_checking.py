"""Check, chat and History without a server: what is asked, kept, shared, shown and refused."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from app_parts import built
from chat_model import make_chat_model
from typer.testing import CliRunner

from ram_studio.app.asking.limits import GENERATED, most_items, read_settings
from ram_studio.app.check import browse, chatting, view
from ram_studio.app.check import work as scoring
from ram_studio.app.check.panel import CheckPanel
from ram_studio.app.check.progress_grid import Cell, Scoring, finished_text
from ram_studio.app.check.verdicts import (
    DIFFER,
    enough_questions,
    judge_merges,
    least_loss,
    power_text,
)
from ram_studio.app.history import view as past_view
from ram_studio.app.history import work as past
from ram_studio.app.history.panel import HistoryPanel
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.session import ChatReply, MergedModel, Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.cli.main import commands as cli
from ram_studio.engine.events import CancelToken
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Answer, Question, Reply
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.skill_verdict import margin_test
from ram_studio.evals.settings import EvalSettings
from ram_studio.resources import asset_path

DEMO = EvalSettings(limit=12)


def user(workspace: Workspace, name: str = "tab") -> Session:
    session = workspace.session(name)
    session.load(load_set("shared-style"))
    return session


def merge(
    session: Session, workspace: Workspace, method: str = "ram+", name: str = "", **settings: float
) -> None:
    recipe = recipe_from(session.loaded, method, settings)
    work = merge_work(recipe, session, workspace.settings, name=name)
    work(lambda event: None, CancelToken())


def evaluate(session: Session, workspace: Workspace, *names: str, plan=DEMO, stop_at=None):
    """Return (report or None, the last moment); stops once so many answers are in."""
    every = scoring.candidates(session)
    chosen = {name: every[name] for name in names or every}
    cancel = CancelToken()
    seen: list[Scoring] = []

    def report(event: Scoring) -> None:
        seen.append(event)
        if stop_at is not None and event.done >= stop_at:
            cancel.cancel()

    try:
        return scoring.score_work(chosen, plan, session, workspace)(report, cancel), seen[-1]
    except Stopped:
        return None, seen[-1]


def texts(report: EvalReport, model: str) -> dict[str, list[str]]:
    return {d: [a.text for a in answers] for d, answers in report.models[model].answers.items()}


def test_a_resumed_check_equals_an_uninterrupted_one(
    session, workspace, tmp_path, monkeypatch
) -> None:
    stopped, at = evaluate(session, workspace, "base", "coding", stop_at=1)
    assert stopped is None
    assert 0 < at.done < at.total
    resumed, last = evaluate(session, workspace, "base", "coding")
    assert last.reused == at.done
    assert last.done == last.total == 96
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "another"))
    whole, fresh = evaluate(session, workspace, "base", "coding")
    assert fresh.reused == 0
    assert texts(whole, "coding") == texts(resumed, "coding")
    again, reused = evaluate(session, workspace, "coding", "base")
    assert reused.reused == 96
    assert texts(again, "base") == texts(whole, "base")


def test_stored_answers_of_all_samples_count_as_reused(session, workspace) -> None:
    twice = EvalSettings(limit=2, samples=2, temperature=1.0)
    _, fresh = evaluate(session, workspace, "base", plan=twice)
    assert (fresh.done, fresh.reused) == (16, 0)
    _, again = evaluate(session, workspace, "base", plan=twice)
    assert (again.done, again.total, again.reused) == (16, 16, 16)
    _, more = evaluate(session, workspace, "base", plan=twice.model_copy(update={"limit": 3}))
    assert (more.done, more.reused) == (24, 16)


def test_users_share_the_answers_of_shipped_models(tmp_path) -> None:
    workspace = Workspace(Settings(work_dir=tmp_path, is_space=True))
    one, two = user(workspace, "one"), user(workspace, "two")
    merge(one, workspace)
    evaluate(one, workspace, "coding", "ram+")
    _, last = evaluate(two, workspace, "coding")
    assert last.reused == 48
    names = [model.name for model in past.past_models(one, workspace)]
    assert sorted(names) == ["coding", "ram+"]
    assert [model.name for model in past.past_models(two, workspace)] == ["coding"]
    (merged,) = (model for model in past.past_models(one, workspace) if model.merge)
    with pytest.raises(EvaluationError, match="chosen rows no longer exist"):
        past.side_by_side([merged.id], "demo", None, two, workspace)
    # The second who checks the same merge has nothing left to ask.
    merge(two, workspace)
    assert evaluate(two, workspace, "ram+")[1].reused == 48
    workspace.close()


def test_a_public_space_stops_in_time_and_stores_the_answers(tmp_path) -> None:
    workspace = Workspace(Settings(work_dir=tmp_path, is_space=True, max_check_seconds=0.0))
    session = user(workspace)
    panel = built(CheckPanel, workspace)
    form = {panel.models: ["base"], panel.kind: "demo", panel.limit: 50, panel.lengths: []}
    *_, last = panel.run(form, session)
    assert session.report is None
    assert "evaluation took longer than this server allows" in last[panel.controls.status]
    work = chatting.chat_work(scoring.candidates(session), "x", 4, True, session, workspace)
    chat = work(lambda event: None, CancelToken())
    assert {said.verdict for said in chat.answers} == {"Not asked: the run was stopped."}
    workspace.close()


def test_general_suites_and_health_run_for_models_with_room(session, workspace, tmp_path) -> None:
    every = scoring.candidates(session)
    folder = make_chat_model(tmp_path / "chat", context=2048)
    chosen = {"base": every["base"]._replace(path=str(folder))}
    limits = {"tool": 2, "instructions": 1}
    plan = EvalSettings(
        suites=("tool", "instructions", "health"), limit=limits, max_tokens=40, think_tokens=8
    )
    seen: list = []
    report = scoring.score_work(chosen, plan, session, workspace)(seen.append, CancelToken())
    assert {d: len(items) for d, items in report.items.items()} == {"tool": 2, "instructions": 1}
    assert {item.max_new_tokens for items in report.items.values() for item in items} == {40}
    assert report.models["base"].settings["think_tokens"] == 8
    # Every question has its letter, and none is open any more.
    marks = seen[-1].marks
    sizes = {domain: len(own) for (_, domain), own in marks.items()}
    assert sizes == {"tool": 2, "instructions": 1}
    assert not set("".join(marks.values())) & {"."}
    html = view.report_html(judge_merges(report, ()), ())
    assert "Perplexity" in html
    assert "n 2" in html


def test_samples_and_stopping_are_told_beside_the_scores(session, workspace, tmp_path):
    folder = make_chat_model(tmp_path / "chat", context=2048)
    chosen = {"base": scoring.candidates(session)["base"]._replace(path=str(folder))}
    given = {"temperature": 1, "top_p": 0.95, "samples": 2, "seed": 3, "max_tokens": 4}
    given |= {"suites": ["math"], "difficulty": 1, "ci_width": 40, "limit": 50}
    plan = read_settings(given, workspace.settings)
    work = scoring.score_work(chosen, plan, session, workspace)
    report = work(lambda event: None, CancelToken())
    assert all(item.id.startswith("math-1-3-") for item in report.items["math"])
    assert (report.seed, report.until.is_decided) == (3, True)
    html = view.report_html(judge_merges(report, ()), ())
    for said in (
        "math: mean of 2",
        "math: pass@2",
        "Decided after 50 questions",
    ):
        assert said in html


# ---------------------------------------------------------------------------- tables and items


def _report(**rights: str) -> EvalReport:
    """Return a report of one domain from strings such as "1101": right, right, wrong, right."""
    n = len(next(iter(rights.values())))
    items = tuple(Question(f"q{i}", "math", "c", f"<q{i}>", "4", None, 8) for i in range(n))
    models = {
        name: ModelAnswers(
            name,
            "/secret/place",
            {"math": tuple(Answer(f"<b>{c}</b>", c == "1") for c in marks)},
            1.0,
            ("math",),
        )
        for name, marks in rights.items()
    }
    return EvalReport("math", 1, {"math": items}, models)


def test_the_heat_table_says_better_and_worse_without_color() -> None:
    half = "0" * 20 + "1" * 20
    html = view.report_html(
        judge_merges(_report(base=half, good="1" * 40, bad="0" * 40, same=half), ()), ()
    )
    assert (html.count("▲ +50.0"), html.count("▼ -50.0")) == (1, 1)
    for said in ("~ +0.0", "35–65 · n 40", "All 6 paired comparisons"):
        assert said in html
    assert "/secret/place" not in html
    # From a few disagreements nobody knows how many questions would tell two models apart.
    html = view.report_html(judge_merges(_report(base="110100", **{"<i>": "110111"}), ()), ())
    for said in ("no difference beyond chance", "&lt;i&gt;"):
        assert said in html
    assert "would need" not in html
    assert "<i>" not in html


def test_an_agent_below_the_base_elsewhere_is_no_failure() -> None:
    rows = {"base": "0" * 20 + "1" * 20, "coding": "0" * 40, "math": "0" * 40, "mine": "0" * 40}
    table = view.heat_table(judge_merges(_report(**rows), ("coding", "math")), ("coding", "math"))
    cells = {name: cells[0] for name, cells in table["rows"] if name != "base"}
    # Of its own skill an agent that is worse is shown as such, and so is a merge.
    marks = {name: (cell["tone"], cell["side"], cell["delta"]) for name, cell in cells.items()}
    worse = ("worse", "down", "▼ -50.0")
    assert marks == {"coding": ("", "", "-50.0"), "math": worse, "mine": worse}


def test_what_questions_can_show_is_what_the_verdict_shows() -> None:
    # As strict as the verdict: at the loss that is said it decides, half a point below it does not.
    for prompts, verdicts in ((50, 1), (200, 3), (1000, 6)):
        least, each = least_loss(prompts, verdicts), math.ceil(DIFFER * prompts / 2)
        for loss, is_shown in ((least, True), (least - 0.5, False)):
            is_above, p = margin_test(_patterns(prompts, each), loss / 100)
            assert is_above
            assert (p < 0.05 / verdicts) == is_shown, (prompts, loss)
    losses = [least_loss(n, 3) for n in range(50, 1001, 50)]
    assert sorted(losses, reverse=True) == losses
    assert power_text(200, 1000, 3).endswith("Enough for a margin of 5.")
    assert power_text(50, 1000, 3).endswith("Ask 200 for a margin of 5.")
    # A suite that ends before it can decide says so, and what it can.
    said = power_text(12, 64, 3)
    reached = f"{least_loss(64, 3):g}"
    assert said.endswith(f"At most 64 can be asked here, enough for a margin of {reached}, not 5.")
    assert "cannot rule out any loss. At most 2 can be asked here, too few" in power_text(1, 2, 40)
    assert power_text(1, 1, 1).endswith("cannot rule out any loss. More cannot be asked here.")
    for verdicts in (3, 6, 9):
        enough = enough_questions(1000, verdicts)
        assert least_loss(enough, verdicts) <= 5 < least_loss(enough - 50, verdicts)
    assert least_loss(1, 1) is None


def test_check_starts_with_enough_questions_for_all_merges(check_panel, session) -> None:
    for name, value in (("a", None), ("b", None), ("c", 250)):
        session.merges[name] = MergedModel(name, Path(name), "ram", {}, "")
        # Up to two merges the 200 of the form are enough; what stands there stays.
        updates = check_panel.shared.merged.updates(session)
        assert updates.get(check_panel.limit) == value


def test_general_suites_start_with_as_many_as_decide(check_panel, session, workspace) -> None:
    panel = check_panel
    assert {panel.items[name].value for name in GENERATED} == {200}
    # Written ones start with all there are, however many lengths of text; sets of data with 200.
    most = {n: panel.items[n].maximum for n in ("instructions", "code", "refusal", "math500")}
    assert most == {"instructions": 48, "code": 40, "refusal": 32, "math500": 1600}
    assert [most_items("memory", workspace.settings, n) for n in (1, 2)] == [16, 32]
    data = {box: box.value for box in (panel.limit, panel.margin, panel.lengths)}
    data |= {box: box.value for box in panel.items.values()} | {panel.models: []}
    data |= {panel.kind: "general", panel.suites: ["tool", "math", "instructions"]}
    told = panel._show_power(data, session)[panel.power].split("</p>")
    assert "<b>Tool use, Mathematics:</b>" in told[0]
    assert "200 questions per skill" in told[0]
    assert told[0].endswith("Enough for a margin of 5.")
    assert "48 questions per skill" in told[1]
    assert told[1].endswith("More cannot be asked here.")


def _patterns(prompts: int, each: int) -> np.ndarray:
    """Return counts by pattern: agent and merge alone right on `each`, both on the rest."""
    counts = np.zeros(8, dtype=int)
    counts[[0b010, 0b001, 0b011]] = each, each, prompts - 2 * each
    return counts


def test_a_finished_check_says_how_many_answers_are_new() -> None:
    cells = {("base", "code"): Cell(2000, 2000, 0), ("ram", "code"): Cell(200, 200, 150)}
    assert finished_text(Scoring(("base", "ram"), cells)) == (
        "Done: 2 models, 2,050 new answers, 150 reused."
    )
    one = {("base", "code"): Cell(1, 1, 0)}
    assert finished_text(Scoring(("base",), one)) == "Done: 1 model, 1 new answer."


def test_filters_find_where_base_and_merge_part() -> None:
    report = _report(base="1100", agent="1010", merge="1001")
    found = {
        which: browse.matching_items(report, "math", which, ["agent"]) for which in browse.FILTERS
    }
    assert found == {
        "all": [0, 1, 2, 3],
        "differ": [1, 2, 3],
        "base-lost": [1],
        "base-won": [3],
        "merge-lost": [2],
        "merge-won": [3],
    }
    html = browse.item_html(report, "math", 1, ["agent"])
    assert "<b>1</b>" not in html
    assert html.count("✓ right") == 1
    assert html.count("✗ wrong") == 2
    # Wrong where it was not trained, an agent is not painted as a failure.
    html = browse.item_html(report, "math", 3, ["agent"])
    assert [html.count(f'key {tone}">✗ wrong') for tone in ("worse", "same")] == [1, 1]


def test_a_long_answer_is_folded_and_an_empty_one_is_said() -> None:
    report = _report(silent="1", long="1", short="1")
    texts = {"silent": "  ", "long": "<" * 5000, "short": "short"}
    models = {
        name: replace(model, answers={"math": (Answer(texts[name], True),)})
        for name, model in report.models.items()
    }
    html = browse.item_html(replace(report, models=models), "math", 0, ())
    assert "Whole answer, 5,000 characters" in html
    assert [html.count(text) for text in ("(nothing)", "&lt;", "<details>")] == [1, 5401, 1]


# ---------------------------------------------------------------------------- chat


def ask(folder: Path, question: str, limit: int = 8, **options) -> ChatReply:
    told: list[ChatReply] = []
    options = {"uses_template": True, "should_stop": lambda: False, "report": told.append} | options
    said = chatting.ask_model(LocalEngine(folder), ChatReply("m"), question, limit, **options)
    assert told[0].state == "reading"
    return said


def test_a_chat_tells_how_each_answer_ended(tmp_path) -> None:
    base = asset_path("independent", "base")
    prompt = "tool: call(user) weather(loc) . user: weather in paris . answer:"
    said = ask(base, prompt, 64)
    assert (said.is_chat, said.verdict) == (False, "Ended by itself.")
    assert said.tokens > 2
    assert said.speed > 0
    ended = {prompt: ("Cut off after 3 tokens", 3), "word " * 3000: ("the model's context is", 0)}
    for question, (verdict, tokens) in ended.items():
        cut = ask(base, question, 3)
        assert verdict in cut.verdict
        assert cut.tokens == tokens
    # Room for less than what was asked for: as much as fits.
    assert ask(base, prompt, 100_000).tokens > 2
    stopped = ask(base, prompt, 64, should_stop=lambda: True)
    assert (stopped.state, stopped.verdict) == ("done", "Stopped here.")

    own = make_chat_model(tmp_path / "chat")
    assert ask(own, "hello").is_chat is True
    assert ask(own, "hello", uses_template=False).is_chat is False
    broken = make_chat_model(tmp_path / "broken", template="{{ raise_exception('no') }}")
    with pytest.raises(EvaluationError, match=r"chat template .* fails"):
        ask(broken, "hello")
    assert ask(broken, "hello", uses_template=False).state == "done"


def test_a_model_that_fails_leaves_the_others_their_turn(session, workspace, tmp_path) -> None:
    broken = make_chat_model(tmp_path / "broken", template="{{ raise_exception('no') }}")
    every = scoring.candidates(session)
    models = {"bad": every["base"]._replace(path=str(broken)), "coding": every["coding"]}
    work = chatting.chat_work(models, "code: f takes x", 4, True, session, workspace)
    chat = work(lambda event: None, CancelToken())
    bad, good = chat.answers
    assert (bad.tone, bad.state) == ("bad", "done")
    assert "chat template" in bad.verdict
    assert good.tokens > 0


@pytest.mark.parametrize(
    ("text", "finish", "ids", "said"),
    [
        ("", "empty", [1], "Empty answer"),
        ("\ufffd" * 9 + "a", "length", range(9), "Mostly unreadable"),
        ("la " * 40, "length", [7] * 40, "It repeats itself"),
        ("fine", "end", [1, 2, 3], "Ended by itself."),
    ],
)
def test_what_is_plainly_wrong_with_an_answer_is_said(text, finish, ids, said) -> None:
    verdict, tone = chatting.judge(Reply(text, "p", finish), list(ids), 40)
    assert said in verdict
    assert (tone == "plain") == (text == "fine")


# ---------------------------------------------------------------------------- History


def test_history_puts_merges_side_by_side_and_takes_them_home(session, workspace) -> None:
    merge(session, workspace, "ram+")
    merge(session, workspace, "task-arithmetic", name="<sum>")
    evaluate(session, workspace, "base", "ram+", "<sum>")
    models = past.past_models(session, workspace)
    assert [model.name for model in models if model.merge] == ["<sum>", "ram+"]
    html = past_view.list_html(models, True, [models[0].id])
    assert html.count(" checked>") == 1
    assert "&lt;sum&gt;" in html
    assert "<sum>" not in html
    assert "?step=tune&amp;set=shared-style&amp;epsilon=" in html
    # Methods have the names of the other steps.
    assert "<td>RAM+ · " in html
    assert "<td>Task Arithmetic" in html
    assert '<th scope="col"></th>' not in html, "a head without a text is no head"
    assert "The example&#39;s skills <b>" in html
    # Tune shows the sum too.
    assert html.count("Settings in Tune") == 2

    found = past.side_by_side([m.id for m in models], "demo", None, session, workspace)
    assert found.base == "base"
    assert {len(items) for items in found.result.report.items.values()} == {12}
    page = past_view.side_by_side_html(found)
    tag = '<span class="merge-tag">merge</span>'
    assert page.count(tag) == 2
    beside = past.side_by_side([m.id for m in models], "demo", "ram+", session, workspace)
    assert past_view.side_by_side_html(beside).count(tag) == 2, "the reference is a merge, too"
    assert 'Effective λ: coding</th>\n<td class="strong">–</td>' in page, "the sum has none"
    assert "▲" in page
    assert "without follow. Chance level: the score" in page
    assert "r</th>" in page
    files = [Path(file) for file in past.export(found, session)]
    assert [file.suffix for file in files] == [".json", ".csv", ".html"]
    content = json.loads(files[0].read_text())
    assert content["merges"]["ram+"]["settings"]["r"] == 0.1
    with files[1].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3 * 48
    assert all(str(workspace.root) not in file.read_text() for file in files)

    # Another session of the same user finds the same; what it merges again stands once.
    again = workspace.session("later")
    assert len(past.past_models(again, workspace)) == len(models)
    again.load(load_set("shared-style"))
    for _ in range(2):
        merge(again, workspace, "ram+")
    merge(again, workspace, "ram+", r=0.3)
    assert list(again.merges) == ["ram+", "ram+ (2)", "ram+ (3)"]
    evaluate(again, workspace, "coding")
    twice = {model.name: model for model in past.past_models(again, workspace)}
    assert {name: model.times for name, model in twice.items() if model.merge} == {
        "<sum>": 1,
        "ram+": 3,
        "ram+ (3)": 1,
    }
    html = past_view.list_html(list(twice.values()), True)
    assert html.count("× 3") == 1
    # Merges and agents of a shipped set say which; the base is that of all three.
    assert html.count("the shared-style agents") == 4
    assert twice["base"].title == ""
    models = [model for model in twice.values() if model.name not in ("coding", "ram+ (3)")]
    panel = built(lambda shared: (CheckPanel(shared), HistoryPanel(shared))[1], workspace)
    assert "Nothing is chosen" in panel.side_by_side("", "demo", None, again)[panel.result]
    updates = panel.side_by_side(",".join(m.id for m in models), "general", None, again)
    assert updates[panel.kind]["value"] == "demo"
    assert sorted(updates[panel.reference]["choices"]) == ["<sum>", "base", "ram+"]


def test_merges_of_the_command_line_are_in_history(session, workspace, tmp_path):
    base, agents = session.loaded.base, session.loaded.agents
    recipe = {"base": base, "agents": dict(agents), "method": "ram+", "settings": {"r": 0.3}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    out = tmp_path / "cli-merge"
    for command in (
        ["merge", str(tmp_path / "r.yaml"), "--out", str(out)],
        ["evaluate", str(out), base, "--suite", "demo", "--limit", "2"],
    ):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
    models = {model.name: model for model in past.past_models(session, workspace)}
    merged = models.pop("cli-merge")
    assert merged.merge.settings["r"] == 0.3
    assert merged.suites == ("demo",)
    (checked,) = models.values()
    found = past.side_by_side([merged.id, checked.id], "demo", None, session, workspace)
    assert {len(items) for items in found.result.report.items.values()} == {2}


def test_only_common_questions_are_compared_the_rest_is_named(
    check_panel, session, workspace
) -> None:
    merge(session, workspace, "ram")
    evaluate(session, workspace, "base")
    evaluate(session, workspace, "coding", plan=EvalSettings(limit=5))
    ids = {model.name: model.id for model in past.past_models(session, workspace)}
    found = past.side_by_side([ids["base"], ids["coding"]], "demo", None, session, workspace)
    assert {len(items) for items in found.result.report.items.values()} == {5}
    found = past.side_by_side([ids["base"], ids["ram"]], "demo", None, session, workspace)
    assert found.result is None
    assert found.left_out == {"demo": "not run on ram"}
    assert "no check in common" in past_view.side_by_side_html(found)

    # Asked of all at a press, where the very weights are loaded.
    assert past.names_in_check(found.models, session) == ["base", "ram"]
    assert past.names_in_check(found.models, user(workspace, "without the merge")) == []
    panel, fill = check_panel, check_panel.shared.asking.fill
    filled = fill(["base", "ram"], ["demo"], session)
    assert (filled[panel.models], filled[panel.kind]) == (["base", "ram"], "demo")
    filled = fill(["base"], ["math", "code"], session)
    assert filled[panel.kind] == "general"
    # The example's context is too short for those.
    assert filled[panel.suites]["value"] == []
