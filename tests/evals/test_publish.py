"""Merges published: what a push adds, and what a gallery reads of it and of strangers' entries."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from engine_zoo import Zoo, make_zoo
from loopback_hub import LoopbackHub, Repository

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import METHODS
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.checkpoints.record.mergekit import import_mergekit
from ram_studio.checkpoints.record.provenance import (
    SKILL_CHECKS,
    checksum_of,
    not_checked,
    read_provenance,
)
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.cli.main import commands
from ram_studio.engine.analyze import analyze
from ram_studio.engine.merge import merge
from ram_studio.engine.verify import verify
from ram_studio.errors import AnalysisError, EvaluationError, OutputError
from ram_studio.evals.publish import scores as publishing
from ram_studio.evals.publish.entry import read_entry
from ram_studio.evals.publish.gallery import build_gallery, gallery_page, load_verified
from ram_studio.evals.publish.hub_files import analysis_file, mergekit_file, push_files
from ram_studio.evals.publish.scores import StatedScore, parse_stated_score, stored_scores
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.canvas_page import canvas_settings
from ram_studio.evals.report.comparison import PairedCounts
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.store import AnswerStore, RunKey
from ram_studio.evals.suites import ALL_SUITES, HARNESS_SUITES
from ram_studio.evals.suites.published import gsm8k
from ram_studio.evals.suites.suite import SuiteSettings

# huggingface_hub sends files in a way that its own HTTP client calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")

ROWS = "".join(
    json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(3)
)


@pytest.fixture
def hub(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The Hub on this machine with a benchmark of three rows, as its owner meets it."""
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    data = dataclasses.replace(gsm8k.DATA, file="rows.jsonl", revision="main")
    files = {"rows.jsonl": ROWS.encode(), "eval.yaml": b"name: GSM8K\ntasks: [{id: grade_school}]"}
    hub.repositories["datasets/openai/gsm8k"] = Repository({"c" * 40: files}, {"main": "c" * 40})
    suite = data.suite(1, "GSM8K", data.make(512, gsm8k._fields), gsm8k.judge, "")
    monkeypatch.setitem(ALL_SUITES, "gsm8k", suite)
    monkeypatch.setattr(publishing, "DATA_SETS", {"gsm8k": data})
    return hub


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("publish") / "zoo", 2)


@pytest.fixture(scope="module")
def plain(zoo: Zoo) -> Path:
    """The zoo's agents merged by RAM+."""
    return merge(zoo.recipe(), zoo.base_path.parent / "merged").out


@pytest.fixture
def merged(plain: Path, tmp_path: Path) -> Path:
    """A copy of that merge, which a test may change."""
    return shutil.copytree(plain, tmp_path / "merged")


@pytest.fixture(scope="module")
def compact(zoo: Zoo) -> Analysis:
    return zoo.analyze().compact()


def answer_all(store: AnswerStore, merged: Path, suite: str, asked: list, right: int) -> None:
    """Have the store know that the first so many of a model's answers are right."""
    checkpoint = open_checkpoint(str(merged), name="merged")
    key = RunKey(model_fingerprint(merged, checkpoint.fingerprint), suite, 1, {"chat": True})
    run = store.open_run(key, model="merged", path=str(merged))
    store.record(run, [(q, Answer("x", i < right, seconds=0.1)) for i, q in enumerate(asked)])


def questions(domain: str, n: int) -> list[Question]:
    return [Question(f"{domain}-{i}", domain, domain, f"{i}?", "g", None, 8) for i in range(n)]


def test_a_gallery_reads_what_a_push_brings(
    hub: LoopbackHub, zoo: Zoo, store: AnswerStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name, path in {"base": zoo.base_path, **zoo.agent_paths}.items():
        hub.add(f"me/{name}", path)
    sources = {name: f"me/{name}" for name in zoo.agent_paths}
    recipe = zoo.recipe(base="me/base", agents=sources, method="linear", settings={})
    merged = merge(recipe, tmp_path / "merged").out
    analysis = save_analysis(analyze("me/base", sources), tmp_path / "analysis.safetensors")
    whole = list(ALL_SUITES["gsm8k"].questions(SuiteSettings(len)))
    answer_all(store, merged, "gsm8k", whole, 2)
    answer_all(store, merged, "tool", questions("tool", 8), 5)
    answer_all(store, zoo.agent_paths["agent0"], "tool", questions("tool", 6), 2)
    answer_all(store, zoo.agent_paths["agent1"], "tool", questions("tool", 6), 6)
    answer_all(store, zoo.base_path, "tool", questions("tool", 8), 8)
    commands(["push", str(merged), "me/merged"], standalone_mode=False)
    repository = hub.repositories["me/merged"]
    edited = repository.commits[repository.branches["main"]]
    edited["README.md"] += b"\nWritten by hand on the Hub.\n"
    command = ["push", str(merged), "me/merged", "--scores", "--analysis", str(analysis)]
    commands([*command, "--store", str(store.path)], standalone_mode=False)
    assert "was there already, 4 files added or updated" in capsys.readouterr().out
    there = repository.commits[repository.branches["main"]]
    # The Hub's library reads what it shows.
    (entry,) = huggingface_hub.parse_eval_result_entries(
        yaml.safe_load(there[".eval_results/gsm8k.yaml"])
    )
    assert (entry.dataset_id, entry.task_id, entry.value) == ("openai/gsm8k", "grade_school", 66.67)
    card = huggingface_hub.ModelCard(there["README.md"].decode())
    (result,) = card.data.eval_results
    assert (card.data.model_name, result.dataset_name) == ("me/merged", "tool")
    # Once, however often it is pushed.
    assert there["README.md"].count(b"Not checked after the merge: knowledge from before") == 1
    assert result.metric_value == 62.5
    assert b"Written by hand on the Hub." in there["README.md"]
    assert result.metric_name.startswith(
        "5 of 8 right, 95 % interval 30.6 to 86.3; against agent1 0 gained, 1 lost of 6; version 1"
    )
    assert there["README.md"].count(b"Reinforced Agent Merging") == (
        (merged / "README.md").read_bytes().count(b"Reinforced Agent Merging")
    )
    back, _ = import_mergekit(there["mergekit_config.yml"].decode(), where="x")
    assert back.method == "linear"
    assert all(f"me/{name}" in str(back.agents.values()) for name in sources)
    out = tmp_path / "site"
    built = build_gallery(["me/merged", "me/base", "me/gone"], out, check=True)
    assert set(built.left_out) == {"me/base", "me/gone"}
    (made,) = built.entries
    assert made.verified is not None, made.notes
    assert made.verified.nbytes > 0
    assert [s.name for s in made.scores] == ["gsm8k", "tool"]
    assert made.scores[1].score == DomainScore(8, 5)
    assert (made.scores[0].against, made.scores[1].agent) == (None, "agent1")
    assert made.scores[1].against == PairedCounts(0, 1, 5)
    page = built.page.read_text()
    assert "Verified</summary>" in page
    assert (out / "merges" / f"{made.key}.html").stat().st_size < 1_500_000
    # The badge is kept for this very commit, and for no other.
    again = ["gallery", "me/merged", "-o", str(tmp_path / "again"), "--json"]
    commands([*again, "--verified", str(out / "verified.json")], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["merges"][0]["verified"] is True
    shard = next(name for name in there if name.endswith(".safetensors"))
    repository.commit({**there, shard: there[shard][:-1] + bytes([there[shard][-1] ^ 1])}, "main")
    with pytest.raises(EvaluationError, match="differs from its digest"):
        build_gallery(["me/merged"], tmp_path / "third", check=True)
    repository.commit({**there, "model.bin": b"pickled"}, "main")
    with pytest.raises(EvaluationError, match=r"`model.bin` is not in the provenance"):
        build_gallery(["me/merged"], tmp_path / "third", check=True)
    repository.commit({**there, "other.analysis": b""}, "main")
    (unchecked,) = build_gallery(["me/merged"], tmp_path / "third").entries
    assert unchecked.verified is None
    assert unchecked.notes == ("No canvas: 2 compact analyses, expected one.",)
    assert not (unchecked.folder / "ram_studio.analysis").exists()


def rewritten(merged: Path, change: Callable[[dict], object]) -> None:
    """Change a merge's provenance, with a checksum that fits."""
    told = json.loads((merged / "ram_studio.json").read_text())
    change(told)
    told["checksum"] = checksum_of(told)
    (merged / "ram_studio.json").write_text(json.dumps(told))


def test_merges_say_what_was_not_checked(merged: Path) -> None:
    assert read_provenance(merged).not_checked == tuple(SKILL_CHECKS)
    assert read_provenance(merged).not_checked == not_checked(["tool", "demo"])
    assert not_checked(["lm-eval:piqa", "ifeval", "tool"]) == ("refusal", "tool-loop")
    known = {*ALL_SUITES, *HARNESS_SUITES["forgetting"]}
    assert known.issuperset(set().union(*(names for _, names in SKILL_CHECKS.values())))
    # A provenance of an earlier version is read too.
    rewritten(merged, lambda told: told.pop("not_checked"))
    assert read_provenance(merged).not_checked == ()


def test_a_provenance_with_other_numbers_gets_no_badge(merged: Path, tmp_path: Path) -> None:
    retained = read_provenance(merged).agents["agent0"].retained.total
    more = {"total": retained + 0.01}
    rewritten(merged, lambda told: told["agents"]["agent0"]["retained"].update(more))
    (unchecked,) = build_gallery([str(merged)], tmp_path / "site").entries
    assert unchecked.verified is None
    with pytest.raises(EvaluationError, match="retained is"):
        build_gallery([str(merged)], tmp_path / "checked", check=True)


def test_only_whole_benchmarks_go_to_a_leaderboard(
    hub: LoopbackHub, store: AnswerStore, merged: Path
) -> None:
    with pytest.raises(EvaluationError, match=r"has no scores of .*ram-studio evaluate"):
        push_files(merged, "me/x", store=store, analysis=None)
    rows = list(ALL_SUITES["gsm8k"].questions(SuiteSettings(len)))
    for asked, is_there in (
        (rows[:2], False),
        ([*rows[:2], dataclasses.replace(rows[2], gold="other")], False),
        (rows, True),
    ):
        store._connection.execute("DELETE FROM runs")
        answer_all(store, merged, "gsm8k", asked, 1)
        files = push_files(merged, "me/x", store=store, analysis=None)
        assert (".eval_results/gsm8k.yaml" in files) is is_there
        assert ("README.md" in files) is not is_there
    # A data set that has no leaderboard.
    data = hub.repositories["datasets/openai/gsm8k"]
    data.commit({"rows.jsonl": ROWS.encode()}, "main")
    assert "README.md" in push_files(merged, "me/x", store=store, analysis=None)


@pytest.mark.parametrize("card", [b"---\n{\n---\n", b"---\n- a\n---\n", b"\xff", None])
def test_scores_of_a_card_that_cannot_be_read_are_refused(
    hub: LoopbackHub, store: AnswerStore, merged: Path, card: bytes | None
) -> None:
    """One that its owner had broken ended in a traceback."""
    answer_all(store, merged, "tool", questions("tool", 3), 1)
    (merged / "README.md").unlink()
    if card is not None:
        (merged / "README.md").write_bytes(card)
    with pytest.raises(EvaluationError, match=r"The card of me/x cannot be read: .* README.md"):
        push_files(merged, "me/x", store=store, analysis=None)


def test_mergekits_recipe_says_what_differs_or_is_left_out(
    zoo: Zoo, plain: Path, tmp_path: Path
) -> None:
    (text,) = mergekit_file(read_provenance(plain)).values()
    assert b"# mergekit looks for rho in each tensor" in text
    assert str(plain.parent).encode() not in text
    assert yaml.safe_load(text)["merge_method"] == "ramplus_tl"
    other = merge(zoo.recipe(method="ram+s", settings={}), tmp_path / "ramplus-s").out
    assert mergekit_file(read_provenance(other)) == {}


def test_an_analysis_of_other_sources_shows_no_canvas(merged: Path, tmp_path: Path) -> None:
    strange = make_zoo(tmp_path / "strange", 2, seed=1).analyze()
    file = save_analysis(strange, tmp_path / "strange.safetensors")
    with pytest.raises(AnalysisError, match="is not of the checkpoints that were merged: `agent0`"):
        analysis_file(read_provenance(merged), file)
    save_analysis(strange.compact(), merged / "ram_studio.analysis")
    entry = read_entry(str(merged))
    assert entry.analysis is None
    assert "agent0" in entry.notes[0]
    (merged / "ram_studio.analysis").write_bytes(b"damaged")
    (note,) = read_entry(str(merged)).notes
    assert note.startswith("No canvas: ")
    assert str(tmp_path) not in note


@pytest.mark.parametrize("settings", [{"epsilon": 10**400}, {"r": 10**400}, {"epsilon": -1}])
def test_no_number_of_one_entry_stops_the_others(
    merged: Path, compact: Analysis, tmp_path: Path, settings: dict[str, object]
) -> None:
    other = shutil.copytree(merged, tmp_path / "other")
    save_analysis(compact, merged / "ram_studio.analysis")
    rewritten(merged, lambda told: told["recipe"].update(settings=settings))
    built = build_gallery([str(merged), str(other)], tmp_path / "site")
    assert [entry.title for entry in built.entries] == ["merged", "other"]
    assert (tmp_path / "site/merges/merged.html").stat().st_size > 10_000


def test_a_gallery_row_has_weights_and_filters(zoo: Zoo, compact: Analysis, tmp_path: Path) -> None:
    kept = ({"match": ["norms"], "keep": "base"},)
    recipe = zoo.recipe(weights={"agent0": 0.5}, filters=kept)
    merged = merge(recipe, tmp_path / "merged").out
    save_analysis(compact, merged / "ram_studio.analysis")
    page = build_gallery([str(merged)], tmp_path / "site").page.read_text()
    # Its canvas opens with them.
    canvas = (tmp_path / "site/merges/merged.html").read_text()
    assert '"settings":{"method":"ram+","weights":{"agent0":0.5}' in canvas
    assert "The canvas cannot show this part of the recipe: filters norms: keep base." in canvas
    assert '<span class="fine">weights agent0=0.5</span>' in page
    assert '<span class="fine">filters norms: keep base</span>' in page


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("ram+", {"epsilon": 2e-5, "r": 1.0, "alpha": 0.2, "scope": "global"}, ""),
        ("ram+", {"scope": "tensor", "shared": "ties"}, "shared ties; scope tensor"),
        ("ram+", {"epsilon": 1.3e-5, "r": 10**400}, f"epsilon 1.3e-05; r {10**400}"),
        ("task-arithmetic", {"scale": -0.5}, "scale -0.5"),
        ("task-arithmetic", {"scale": None, "normalize": True}, "normalize True"),
        ("wudi", {"solver": "closed"}, ""),
        ("wudi", {}, "solver adam"),
        ("magmax", {"scale": 2.0}, "method magmax (it opens with RAM+)"),
    ],
)
def test_a_canvas_says_what_it_cannot_show(
    method: str, settings: dict[str, object], told: str
) -> None:
    recipe = Recipe(base="b", agents={"a": "x", "c": "y"}, method=method, settings=settings)
    whole = recipe.model_copy(
        update={"settings": METHODS[method].settings().model_dump() | settings}
    )
    _, note = canvas_settings(whole)
    start = "The canvas cannot show this part of the recipe: "
    assert note == (f"{start}{printable(told, 400)}." if told else "")


def test_a_canvas_says_that_densities_are_not_shown() -> None:
    values = {"base": "b", "agents": {"a": "x"}, "method": "ties", "densities": {"a": 0.5}}
    _, note = canvas_settings(make_recipe(values))
    assert note == "The canvas cannot show this part of the recipe: densities a=0.5."


def test_only_rams_methods_have_a_lambda(zoo: Zoo, tmp_path: Path) -> None:
    for method, has_lambda in (("ram+", True), ("ties", False), ("task-arithmetic", False)):
        recipe = zoo.recipe(method=method, settings={})
        merged = merge(recipe, tmp_path / method).out
        page = build_gallery([str(merged)], tmp_path / f"site-{method}").page.read_text()
        assert ("<span>λ 1." in page) is ("<span>λ" in page) is has_lambda
        card = (merged / "README.md").read_text()
        for words in ("requested lambda |", "effective lambda |", "requested and effective"):
            assert (words in card) is has_lambda
        assert "| rho |" in card


def test_a_gallery_shows_a_stored_lambda_of_zero(plain: Path) -> None:
    entry = read_entry(str(plain))
    agents = {
        name: agent.model_copy(update={"effective_scaling_factor": 0.0})
        for name, agent in entry.provenance.agents.items()
    }
    lost = entry.provenance.model_copy(update={"agents": agents})
    page = gallery_page([dataclasses.replace(entry, provenance=lost)], {}, "Merges")
    assert page.count("<span>λ 0.000</span>") == len(agents)


def test_a_gallery_refuses_another_list_of_what_was_verified(tmp_path: Path) -> None:
    (file := tmp_path / "verified.json").write_text(
        '{"me/a@1": {"nbytes": "x", "version": "1", "day": "today"}}'
    )
    with pytest.raises(EvaluationError, match=r"is not the verified\.json of a gallery"):
        load_verified(file)


def test_a_gallery_within_a_merge_is_refused(merged: Path) -> None:
    """The merge was not what its provenance says any more."""
    with pytest.raises(OutputError, match="is inside"):
        build_gallery([str(merged)], merged / "site")
    verify(merged)


def test_merges_of_equal_names_have_pages_of_their_own(plain: Path, tmp_path: Path) -> None:
    places = ("one/same", "two/Same", "three/same.2")
    folders = [shutil.copytree(plain, tmp_path / place) for place in places]
    built = build_gallery([str(folder) for folder in folders], tmp_path / "site")
    assert [entry.key for entry in built.entries] == ["same", "Same.2", "same.2.2"]


def test_regexes_of_others_are_never_run(merged: Path, tmp_path: Path) -> None:
    filters = [{"match": ["re:((.*)*)*!"], "keep": "base"}]
    rewritten(merged, lambda told: told["recipe"].update(filters=filters))
    (entry,) = build_gallery([str(merged)], tmp_path / "site", check=True).entries
    assert entry.verified is None
    assert entry.notes[-1].startswith("Not verified: its filters have regexes")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_untrusted_entries_are_escaped_bounded_or_left_out(plain: Path, tmp_path: Path) -> None:
    merged = shutil.copytree(plain, tmp_path / "x <img src=x onerror=alert(3)>")
    told = StatedScore("tool", DomainScore(8, 5), f"version 1 {HOSTILE}")
    card = {
        "model-index": [
            {"results": [{"dataset": {"name": HOSTILE[:70]}, "metrics": [{"name": told.text}]}]}
        ]
    }
    (merged / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n{HOSTILE}")
    for spoil in (lambda folder: (folder / "ram_studio.json").write_bytes(b" " * 4_000_001),
                  lambda folder: (folder / "ram_studio.json").write_text("{}"),
                  lambda folder: (folder / "ram_studio.json").unlink()):  # fmt: skip
        bad = tmp_path / f"bad{len(list(tmp_path.iterdir()))}"
        bad.mkdir()
        (bad / "ram_studio.json").write_bytes((merged / "ram_studio.json").read_bytes())
        spoil(bad)
    bads = [str(path) for path in sorted(tmp_path.glob("bad*"))]
    built = build_gallery([str(merged), *bads, HOSTILE], tmp_path / "site", title=HOSTILE)
    assert list(built.left_out) == [*(Path(path).name for path in bads), Path(HOSTILE).name]
    assert str(tmp_path) not in str(built.left_out)
    entry = dataclasses.replace(built.entries[0], notes=(HOSTILE,))
    page = gallery_page([entry], built.left_out, HOSTILE)
    for text in (
        page,
        built.page.read_text(),
        *(p.read_text() for p in (tmp_path / "site/merges").iterdir()),
    ):
        assert "<script>alert" not in text
        assert not re.search(r"<img[^>]*onerror", text)
        assert "default-src 'none'" in text
    assert re.search(r"&lt;script&gt;alert\(1\)", page)
    assert entry.scores[0].score == DomainScore(8, 5)
    with pytest.raises(OutputError, match="exists and is not empty"):
        build_gallery([str(merged)], tmp_path / "site")
    with pytest.raises(EvaluationError, match=r"RAM Studio\. \. has no ram_studio"):
        build_gallery(["/"], tmp_path / "root")
    with pytest.raises(EvaluationError, match="No source is a merge"):
        build_gallery(bads, tmp_path / "none")
    assert not (tmp_path / "none").exists()


PAIRED = PairedCounts(2, 1, 4)
GOOD = StatedScore("tool", DomainScore(8, 5), "version 1, greedy", "agent", PAIRED).text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "62.5",
        GOOD.replace("5 of 8", "9 of 8"),
        GOOD.replace("5 of 8", "0 of 0"),
        GOOD.replace("of 8", "of 99999999"),
        GOOD.replace("2 gained", "6 gained"),
        GOOD.replace("of 7", "of 9"),
        GOOD + "\n",
        GOOD + "x" * 300,
    ],
)
def test_a_score_counts_only_where_its_counts_can_be(text: object) -> None:
    assert parse_stated_score("tool", text) is None
    stated = StatedScore("tool", DomainScore(8, 5), "version 1, greedy", "agent", PAIRED)
    assert parse_stated_score("tool", GOOD) == stated
    alone = dataclasses.replace(stated, agent=None, against=None)
    assert parse_stated_score("tool", alone.text) == alone
    # Questions that share documents tell less, and say so.
    paired = PairedCounts(2, 1, 4, clusters=((1, 1), (-1, 0), (0, 0, 0)))
    few = DomainScore(8, 5, effective_n=3.0)
    shared = parse_stated_score("tool", dataclasses.replace(stated, score=few, against=paired).text)
    assert shared.score == few
    assert shared.against.effective_n == round(paired.effective_n) < 7
    for of in ("as of 3 questions", f"as of {shared.against.effective_n:.0f};"):
        for wrong in ("0", "9"):
            assert (
                parse_stated_score("tool", shared.text.replace(of, f"as of {wrong}{of[7:]}"))
                is None
            )


@pytest.mark.parametrize(
    "card",
    [
        "---\na: &a [1]\nmodel-index: *a\n---\n",
        "---\nmodel-index: 3\n---\n",
        "---\nmodel-index: [{results: [{dataset: {name: x}, metrics: 7}]}]\n---\n",
        "---\n{\n---\n",
        "no front matter",
    ],
)
def test_a_card_that_is_none_states_no_score(merged: Path, card: str) -> None:
    (merged / "README.md").write_text(card)
    (merged / ".eval_results").mkdir()
    (merged / ".eval_results" / "x.yaml").write_text("- dataset: {id: openai/gsm8k}\n  notes: []")
    assert read_entry(str(merged)).scores == ()


def test_of_several_runs_the_newest_and_fullest_counts(store: AnswerStore) -> None:
    for version, settings, n in ((1, {}, 9), (2, {"temperature": 1.0}, 3), (2, {}, 4)):
        run = store.open_run(RunKey("f" * 32, "tool", version, settings), model="m")
        store.record(run, [(q, Answer("x", True, seconds=0.1)) for q in questions("tool", n)])
    ((_, found),) = stored_scores(store, "f" * 32)
    assert (found.score.n, found.settings) == (4, "version 2, greedy, prompts own, shots 0")
