"""Sweeps on the example agents: true scores, one answer per merge, stop and resume, budgets."""

import csv
import io
import json
from itertools import count
from types import SimpleNamespace

import pytest

from ram_studio.algorithm.analysis import BASE
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import load
from ram_studio.engine.merge import merge
from ram_studio.errors import EvaluationError, SettingsError, Stopped
from ram_studio.evals.answering.local import MergedEngine
from ram_studio.evals.experiment.answers import Answers, identify
from ram_studio.evals.experiment.run import sweep
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path

AGENTS = {name: str(asset_path("independent", name)) for name in ("coding", "tool", "memory")}
ANALYSIS = asset_path("independent", "analysis.safetensors")


def recipe(method: str = "ram+", weights: dict | None = None, **settings):
    own = {"method": method, "settings": settings, "weights": weights or {}}
    return make_recipe({"base": str(asset_path("independent", "base")), "agents": AGENTS, **own})


def outcome(state) -> tuple:
    rows = [(r.label, r.status, r.correct, r.n, r.same_as, r.loss) for r in state.rows]
    return rows, state.recheck, state.winner


def small_grid(store: AnswerStore, **more):
    axes = {"method": "ram,ram+,ties", "r": "0,0.4", "scale": "0.05,1"}
    options = {"limit": 20, "device": "cpu", "analysis": load_analysis(ANALYSIS), **more}
    return sweep(recipe(r=0.5), axes, store=store, **options)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    return tmp_path_factory.mktemp("sweep") / "answers.sqlite3"


@pytest.fixture(scope="module")
def finished(store_path):
    """A small grid, swept to its end with a store."""
    states = []
    with AnswerStore(store_path) as store:
        return small_grid(store, on_update=states.append), states


def test_equal_settings_are_asked_once_and_losers_dropped(finished):
    result, _ = finished
    rows = {row.label: row for row in result.rows}
    assert rows["ram+ (r 0)"].same_as == "ram"
    assert rows["ram+ (r 0)"].correct == rows["ram"].correct
    assert result.settings == 5
    assert {row.label for row in result.measured} == set(rows) - {"ram+ (r 0)"}
    loser = result.row("ties (scale 0.05)")
    assert loser.status == "dropped"
    assert loser.n < result.questions
    assert loser.loss.losses > loser.loss.wins
    assert loser.loss.p_value <= result.level == 0.05 / (4 * 3)
    assert "1 clear loser was dropped early" in result.statements[0]


def test_the_winner_is_checked_on_other_questions(finished):
    result, states = finished
    best = result.best
    assert best.correct == max(row.correct for row in result.rows)
    # Reproducibility details and chance level: the same prompts for all settings.
    assert (set(result.chance_levels), result.reproducibility.questions) == (
        set(best.domains),
        best.n,
    )
    assert result.reproducibility.models[best.label].settings["engine"] == "transformers"
    assert result.recheck.winner.n == result.held_out > 50
    assert set(result.recheck.domains["winner"]) == {"code", "tool", "memory", "follow"}
    assert result.recheck.counts.wins + result.recheck.counts.losses <= result.held_out
    said = " ".join(result.statements)
    assert "5 settings were compared" in said
    assert "As the best of 5 this score is optimistic." in said
    assert f"On {result.held_out} held-out questions" in said
    assert states[-1] == result
    assert [s.answers for s in states] == sorted(s.answers for s in states)
    json.dumps(as_json(result), allow_nan=False)
    lines = list(csv.DictReader(io.StringIO(result.to_frame().to_csv(index=False))))
    assert [line["label"] for line in lines] == [row.label for row in result.rows]
    assert float(lines[0]["lambda_tool"]) == result.rows[0].factors["tool"]


def test_the_scores_are_those_of_the_merge_written_to_a_folder(finished, tmp_path):
    result, _ = finished
    row = result.row("ram+ (r 0.4)")
    merge(recipe(r=0.4), tmp_path / "merged", analysis=load_analysis(ANALYSIS), device="cpu")
    report = evaluate({"m": tmp_path / "merged"}, "demo", limit=20, device="cpu")
    assert row.n == 60
    for domain, score in row.domains.items():
        assert score == report.models["m"].domains[domain]


def test_a_second_run_asks_nothing_and_says_the_same(finished, store_path, monkeypatch):
    def never(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("ram_studio.evals.answering.local.load_model", never)
    result, _ = finished
    with AnswerStore(store_path) as store:
        again = small_grid(store)
    assert outcome(again) == outcome(result)
    assert again.row("ram+ (r 0.4)").factors == result.row("ram+ (r 0.4)").factors


def _small(search: str, store, stop_after: int | None = None):
    """Run a small sweep, stopped at the given poll; return (sweep, answers asked anew)."""
    axes = ["r=0:0.5:2", "rule=ram+,ram+s"] if search == "grid" else ["r=0:0.5"]
    options = {"limit": 3, "search": search, "trials": 3, "seed": 9, "batch_size": 5}
    polls = count()
    state = sweep(
        recipe(),
        axes,
        device="cpu",
        analysis=load_analysis(ANALYSIS),
        store=store,
        should_stop=lambda: stop_after is not None and next(polls) >= stop_after,
        **options,
    )
    return state, sum(run.answered for run in store.runs())


@pytest.mark.parametrize(
    ("search", "polls"),
    [("grid", (30, 150)), pytest.param("optuna", (130,), marks=pytest.mark.slow)],
)
def test_a_resumed_run_equals_an_uninterrupted_one(search, polls, tmp_path):
    with AnswerStore(tmp_path / "whole.sqlite3") as store:
        whole, total = _small(search, store)
    assert whole.ending == "done"
    path = tmp_path / "parts.sqlite3"
    kept = []
    for stop_after in polls:
        with AnswerStore(path) as store:
            stopped, answered = _small(search, store, stop_after)
        assert stopped.ending == "stopped"
        assert stopped.recheck is None
        assert "stopped" in " ".join(stopped.statements) or stopped.winner is None
        kept.append(answered)
    assert kept == sorted(kept)
    assert 0 < kept[-1] < total
    with AnswerStore(path) as store:
        resumed, answered = _small(search, store)
    assert answered == total
    assert outcome(resumed) == outcome(whole)
    if search == "optuna":
        # As many settings as asked for, after the recipe as it is.
        assert (whole.rows[0].is_start, whole.rows[0].label) == (True, "ram+ (r 0.1)")
        assert len(whole.measured) == 4
        assert "a guide, not a proof" in whole.statements[-1] or len(whole.not_worse) == 1


def test_time_that_is_up_ends_a_sweep_with_what_there_is():
    state = sweep(recipe(), ["r=0:1:3"], limit=2, minutes=1e-9, device="cpu")
    assert (state.ending, state.winner) == ("out_of_time", None)
    assert state.statements[0].startswith("No setting was scored before time was up")
    assert all(row.n == 0 for row in state.rows)


def test_time_is_kept_back_for_the_check_of_the_winner(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    for module in ("runner", "answers"):
        monkeypatch.setattr(f"ram_studio.evals.experiment.{module}.time", clock)
    done: dict[str, int] = {}

    def tick(label: str, answered: int, of: int) -> None:
        # A second for each answer.
        clock.now += answered - done.get(label, 0)
        done[label] = answered if answered < of else 0

    how = {"limit": 4, "minutes": 72 / 60, "early_stop": False, "device": "cpu"}
    analysis = load_analysis(ANALYSIS)
    state = sweep(recipe(r=0.5), ["r=0:0.5:6"], analysis=analysis, on_progress=tick, **how)
    assert state.ending == "out_of_time"
    # 72 s less 2 x 16 held-out answers: three settings of 12 fit, the fourth is late.
    assert [row.status for row in state.rows].count("unfinished") == 3
    assert len(state.measured) == 3
    assert state.recheck is not None
    assert clock.now <= 40 + 1 + 32


def test_slim_asks_singles_pairs_and_its_best():
    options = {"search": "slim", "limit": 2, "device": "cpu", "analysis": load_analysis(ANALYSIS)}
    state = sweep(recipe(), {"weight": "0:1"}, **options)
    assert (state.settings, len(state.surrogate.singles), len(state.surrogate.pairs)) == (8, 3, 3)
    assert state.rows[0].is_start
    weights = [tuple(row.weights.values()) for row in state.rows[1:7]]
    assert weights[:4] == [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]
    singles = [row.average.score for row in state.rows[1:4]]
    assert list(state.surrogate.singles) == pytest.approx(singles)
    predicted = state.surrogate.predict((1 / 3, 1 / 3, 1 / 3))
    measured = state.rows[0].average.score
    start = f"{predicted:.3f} at the start (measured: {measured:.3f})"
    assert f"SLIM predicts from 3 singles and 3 pairs: {start}" in " ".join(state.statements)
    assert json.loads(json.dumps(as_json(state)))["surrogate"]["agents"] == [*AGENTS]


def test_slim_fits_no_score_of_a_failed_merge(monkeypatch):
    identify = Answers.identify

    def refused(self, candidate):
        if candidate.values.get("weight.tool") == 0 == candidate.values.get("weight.memory"):
            raise SettingsError("Nothing is left.")
        return identify(self, candidate)

    monkeypatch.setattr(Answers, "identify", refused)
    options = {"search": "slim", "limit": 1, "device": "cpu", "analysis": load_analysis(ANALYSIS)}
    state = sweep(recipe(), {"weight": "0:1"}, **options)
    (failed,) = (row for row in state.rows if row.status == "failed")
    assert (state.surrogate, len(state.measured), state.ending) == (None, 6, "done")
    told = f"it needs the scores of {failed.label}, which did not merge"
    assert [line for line in state.statements if "SLIM" in line] == [
        f"SLIM predicts nothing: {told}."
    ]


@pytest.mark.parametrize("start", [0.0, 0.001])
def test_among_equals_the_start_is_the_best(start):
    state = sweep(
        recipe(r=start), ["r=0,0.001"], limit=1, device="cpu", analysis=load_analysis(ANALYSIS)
    )
    assert state.rows[0].correct == state.rows[1].correct
    assert state.winner == f"ram+ (r {start:g})"
    assert state.best.is_start
    assert "It is the setting the sweep started from." in state.statements


def test_an_unmergeable_setting_is_a_row_with_its_reason():
    axes, options = ["agent=tool,search"], {"limit": 1, "held_out": 0, "device": "cpu"}
    state = sweep(recipe("region", agent="tool"), axes, **options)
    row = state.row("region (agent search)")
    assert (row.status, row.n) == ("failed", 0)
    assert "of agent 'search'" in row.note
    assert (state.ending, state.winner) == ("done", "region (agent tool)")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("ram", {}), ("ram+", {"r": 0.0}), True),
        (("ram", {}), ("ram+s", {"r": 0.0}), True),
        (("ram+", {"alpha": 90.0}), ("ram+", {"alpha": 91.0}), True),
        (("ram+", {"alpha": 0.5}), ("ram+", {"alpha": 0.6}), False),
        (("ram", {}), ("ram", {"epsilon": 1e-3}), False),
        (("ram", {}), ("ram", {"shared": "ties"}), False),
        (("ties", {}), ("ties", {"density": 0.3}), False),
        (("ram+", {}), ("ram+", {"weights": dict.fromkeys(AGENTS, 1.0)}), True),
        (("ram+", {}), ("ram+", {"weights": {"tool": 0.5}}), False),
    ],
)
def test_equal_identities_are_equal_files(one, other, is_same, tmp_path):
    report = load(str(asset_path("independent", BASE)), AGENTS)
    analysis = load_analysis(ANALYSIS)
    digests, files = [], []
    for number, (method, settings) in enumerate((one, other)):
        made = recipe(method, **settings)
        digests.append(identify(report, made, analysis=analysis, device="cpu").digest)
        merge(made, tmp_path / str(number), analysis=analysis, device="cpu")
        files.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert (digests[0] == digests[1]) is is_same
    if is_same:
        # The header may name the recipe; the tensors come after it.
        tensors = [f[8 + int.from_bytes(f[:8], "little") :] for f in files]
        assert tensors[0] == tensors[1]


def test_settings_alike_in_four_digits_have_labels_of_their_own():
    own = {"device": "cpu", "held_out": 0, "analysis": load_analysis(ANALYSIS)}
    found = sweep(recipe(r=0.1), {"r": [0.10001, 0.10002, 0.3]}, limit=1, **own)
    assert {row.label: row.values["r"] for row in found.rows} == {
        "ram+ (r 0.1)": 0.1,
        "ram+ (r 0.10001)": 0.10001,
        "ram+ (r 0.10002)": 0.10002,
        "ram+ (r 0.3)": 0.3,
    }


def test_an_engine_that_holds_no_merge_says_so():
    base = open_checkpoint(asset_path("independent", BASE), name=BASE)
    engine = MergedEngine(base, device="cpu")
    with pytest.raises(EvaluationError, match="no merge to answer with"):
        _ = engine.identity


def test_a_stop_before_the_start_keeps_the_winners_answers(store_path, monkeypatch):
    ask, last = Answers.ask, []

    def asked(self, entry, questions):
        if self.items.held_out and questions == self.items.held_out:
            last.append(entry)
            if len(last) == 2:
                raise Stopped("Stopped; nothing was left behind.")
        return ask(self, entry, questions)

    monkeypatch.setattr(Answers, "ask", asked)
    with AnswerStore(store_path) as store:
        state = small_grid(store, should_stop=lambda: len(last) == 2)
    assert state.ending == "stopped"
    assert state.recheck is None
    assert f"{last[0].label}, held out" in state.reproducibility.models
