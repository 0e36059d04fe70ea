"""How merges of an experiment are asked: as an evaluation asks, by the same options."""

import json
import shutil

import pytest
from chat_model import make_chat_model
from typer.testing import CliRunner

from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.cli.main import commands
from ram_studio.errors import RamStudioError
from ram_studio.evals.experiment.run import compare_methods, sweep
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.report.score import DomainScore, as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.until import Until
from ram_studio.resources import asset_path

DRAWN = {"temperature": 1.0, "top_p": 0.95, "samples": 2, "max_tokens": 4, "device": "cpu"}


@pytest.fixture
def few(monkeypatch):
    """Let the first look of asking until decided be after 12 questions, not 50."""
    monkeypatch.setattr("ram_studio.evals.until.FIRST", 12)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base, coding = (
        str(make_chat_model(folder / name, agent=name, template=None))
        for name in ("base", "coding")
    )
    return make_recipe({"base": base, "agents": {"coding": coding}, "method": "ram+"})


def test_a_comparison_samples_until_decided_like_an_evaluation(recipe, few, store):
    rows = {"ram+": recipe}
    how = {"suites": "math", "store": store, **DRAWN}
    table = compare_methods(rows, ci_width=90, limit=200, **how)
    alone = evaluate({"coding": recipe.agents["coding"]}, limit=12, **how)
    # The 12 of the first look decided: no answer is right, and the intervals are narrow.
    assert {row.domains["math"].n for row in table.report.models.values()} == {12}
    assert (table.until.looks, table.questions) == (1, 12)
    said = as_json(table)
    assert any(line.startswith("Decided after 12 questions") for line in said["statements"])
    assert said["rows"][0]["samples"]["math"]["samples"] == 2
    assert table.sample_rows[1][0] == "math: pass@2"
    # The same questions, drawn the same way, and told of every row.
    assert table.report.models["coding"].answers == alone.models["coding"].answers
    asked = said["reproducibility"]["models"]
    assert set(asked) == {"base", "coding", "ram+"}
    for own in asked.values():
        assert own["settings"]["temperature"] == 1.0
        assert (own["settings"]["seed"], own["settings"]["samples"]) == (2026, 2)
        assert {"ram-studio", "torch", "transformers"} == set(own["software"])
    json.dumps(said, allow_nan=False)


def test_a_comparison_tells_the_spread_of_its_wordings(recipe, store):
    seen = []
    how = {"suites": "math", "limit": 2, "paraphrases": 3, "max_tokens": 4, "device": "cpu"}
    how["on_progress"] = lambda *told: seen.append(told)
    table = compare_methods({"ram+": recipe}, store=store, **how)
    # How the merge was made is known of the run of each wording.
    made = [run.merge for run in store.runs() if run.model == "ram+"]
    assert [set(merge["agents"]) for merge in made] == [{"coding"}] * 3
    assert {row.paraphrases["math"].questions for row in table.rows} == {2}
    ((what, texts),) = table.sample_rows
    assert what == "math: mean of 3 wordings"
    assert [text.partition(", spread ")[2] for text in texts] == ["0.000"] * len(table.rows)
    assert as_json(table)["rows"][0]["paraphrases"]["math"]["spread"] == 0
    # Six answers each, and never more than all.
    assert {(answered, total) for _, answered, total in seen if answered == total} == {(6, 6)}
    assert all(answered <= total for _, answered, total in seen)


def test_a_sweep_asks_until_decided_and_checks_the_winner_alike(recipe, few):
    settings = {"suites": "math", "max_tokens": 2, "device": "cpu", "minutes": None}
    state = sweep(recipe, {"r": "0.1,0.4"}, ci_width=90, limit=400, **settings)
    assert {row.n for row in state.measured} == {12}
    assert (state.recheck.winner.n, state.questions, state.held_out) == (12, 12, 12)
    assert state.until.is_decided
    assert any("Decided after 12" in line for line in state.statements)
    # Reproducibility details come with every row, and of the check of the winner apart.
    rows = {row.label for row in state.measured}
    assert set(state.reproducibility.models) == rows | {f"{state.winner}, held out"}
    held = state.reproducibility.held_out
    assert held.questions == 12
    assert f"12 held out (hash {held.prompts})" in state.lines[0]
    assert held.prompts != state.reproducibility.prompts
    cut_off = [own.outcomes.cut_off for own in state.reproducibility.models.values()]
    assert min(cut_off) > 0


def test_a_column_beside_the_average_decides_nothing(recipe, few):
    how = {"suites": "tool", "difficulty": 1, "max_tokens": 2, "device": "cpu"}
    how |= {"ci_width": 50, "limit": 24}
    table = compare_methods({"ram+": recipe}, sources=False, **how)
    alone = evaluate({"coding": recipe.agents["coding"]}, **how)
    # Of 12 questions two have no function that fits: their interval is wide.
    assert {len(items) for items in alone.items.values()} == {10, 2}
    assert (table.until.questions, alone.until.questions) == (12, 12)
    assert table.questions == 10
    assert table.until.is_decided


def test_looks_double_from_50_questions_up_to_the_most():
    unsure = Until(0.001, 60)
    looks = [unsure.decide(number, [DomainScore(50, 25)]) for number in (1, 2)]
    assert [(look.questions, look.is_decided) for look in looks] == [(50, False), (60, False)]


def test_a_merge_without_fisher_files_fails_alone(tmp_path):
    """An agent that transformers does not load ended the whole comparison."""
    agent = shutil.copytree(asset_path("independent", "coding"), tmp_path / "coding")
    config = json.loads((agent / "config.json").read_text())
    (agent / "config.json").write_text(json.dumps({**config, "model_type": "unknown"}))
    base = str(asset_path("independent", "base"))
    recipe = make_recipe({"base": base, "agents": {"coding": str(agent)}})
    rows = {"fisher": with_method(recipe, "fisher", {"examples": 1}), "ram": recipe}
    found = compare_methods(rows, limit=1, sources=False, device="cpu")
    assert [row.status for row in found.rows] == ["failed", "finished"]
    assert "does not load as a causal language model" in found.row("fisher").note


def test_texts_are_read_in_pieces_by_merges_too(recipe):
    pieces = {"mode": "memagent", "chunk_tokens": 300, "memory_tokens": 8}
    pieces |= {"lengths": (700,), "max_tokens": 4}
    rows = {"ram+": recipe}
    asked = {"suites": "memory", "limit": 1, "sources": False, "device": "cpu"}
    whole, read = (compare_methods(rows, **asked, **how) for how in ({"lengths": (700,)}, pieces))
    assert read.report.models["ram+"].settings["mode"] == "memagent"
    assert "mode" not in whole.report.models["ram+"].settings


def test_room_for_thinking_counts_before_any_merge_is_asked(recipe):
    how = {"think_tokens": 5000, "suites": "math", "limit": 2, "device": "cpu"}
    with pytest.raises(RamStudioError, match=r"Suite math cannot be asked .* context is 4096"):
        compare_methods({"ram+": recipe}, **how)


def test_both_commands_have_the_options_of_evaluate(recipe):
    sources = ["--base", recipe.base, "--agent", f"coding={recipe.agents['coding']}"]
    how = ["--temperature", "1", "--samples", "2", "--top-p", "0.95", "--max-tokens", "9"]
    for words, seed in (
        (["compare", "--row", "ram", "--no-sources", "--eval-seed", "3", "--limit", "2"], 3),
        (["sweep", "--over", "r=0.1,0.4", "--limit", "2"], 2026),
    ):
        command = [*words, *sources, *how, "--no-store", "--device", "cpu"]
        done = CliRunner().invoke(commands, command)
        assert done.exit_code == 0, done.output
        assert "code: pass@2" in done.stdout
        told = done.stdout.partition("Reproducibility: ")[2]
        for part in (f"seed {seed}", "temperature 1.0", "samples 2", "torch", "cut off"):
            assert part in told
        refused = CliRunner().invoke(commands, [*command, "--ci-width", "20"])
        assert "Only generated suites" in str(refused.exception)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_sweep_of_settings_that_cannot_be_merged_fails(recipe, more):
    agents = [x for name in "ab" for x in ("--agent", f"{name}={recipe.agents['coding']}")]
    how = ["--method", "slerp", "--over", "t=0.2,0.5", "--limit", "2", "--no-store"]
    done = CliRunner().invoke(commands, ["sweep", recipe.base, *agents, *how, *more])
    assert done.exit_code == 2
    assert "slerp takes the base and one agent, not 2" in done.stdout
