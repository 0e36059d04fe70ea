"""The shipped example is what its record and its analyses say: scores, densities, sizes, counts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.utils import parameters_to_vector
from transformers import AutoModelForCausalLM, AutoTokenizer

from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.answering.load import load_model
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites.demo.tasks import DOMAINS
from ram_studio.resources import asset_path
from training.shipped.agents import read_record
from training.shipped.analyses import ANALYSIS_FILE, SETS, example_analysis
from training.shipped.build import FULL_PLAN
from training.shipped.pretrain import easy_scores, is_up
from training.shipped.reinforce import generate
from training.shipped.rivals import BEYOND, TUNED, UNTRIMMED

RIVALS = (*TUNED, "average", "sum")

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "assets"
N = 40
# Sums may be rounded differently on another machine, and an answer on the edge may then flip.
MAX_FLIPS = 1


def record(name: str) -> dict:
    return read_record(ASSETS / name)


def paths(name: str) -> dict[str, Path]:
    agents = {agent: ASSETS / name / agent for agent in record(name)["agents"]}
    return {"base": ASSETS / "independent" / "base", **agents}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[AnswerStore]:
    """What the base, which all sets have, answered for the first of them."""
    with AnswerStore(tmp_path_factory.mktemp("asked") / "answers.sqlite") as made:
        yield made


@pytest.mark.parametrize("name", SETS)
def test_scores_are_reproduced_item_by_item(name, store):
    shipped = record(name)
    seed = shipped["evaluation"]["seed"]
    report = evaluate(paths(name), limit=N, device="cpu", seed=seed, store=store)
    for model, result in report.models.items():
        for domain in DOMAINS:
            found = "".join("01"[answer.is_correct] for answer in result.answers[domain])
            expected = shipped["verdicts"][model][domain][:N]
            flips = sum(a != b for a, b in zip(found, expected, strict=True))
            assert flips <= MAX_FLIPS, (model, domain, flips)


@pytest.mark.parametrize("name", SETS)
def test_scores_in_the_record_are_those_the_readme_shows(name):
    shipped = record(name)
    readme = (ASSETS / "independent" / "README.md").read_text(encoding="utf-8")
    for row in (*shipped["scores"].values(), *shipped["merges"].values()):
        columns = ("code", "tool", "memory", "average", "follow")
        assert f"| {' | '.join(f'{row[column]:.3f}' for column in columns)} |" in readme
    for model, domains in shipped["verdicts"].items():
        for domain, verdicts in domains.items():
            assert len(verdicts) == shipped["evaluation"]["n"]
            share = verdicts.count("1") / len(verdicts)
            assert shipped["scores"][model][domain] == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize("name", SETS)
def test_densities_and_ratios_are_reproduced_exactly(name):
    # From the weights and the paper's equations, without the engine.
    flat = {
        model: parameters_to_vector(load_model(folder, "cpu")[0].parameters()).detach()
        for model, folder in paths(name).items()
    }
    changed = {agent: (flat[agent] - flat["base"]).abs() > 1e-5 for agent in record(name)["agents"]}
    alone = sum(mask.int() for mask in changed.values()) == 1
    for agent, own in record(name)["agents"].items():
        count, unique = int(changed[agent].sum()), int((changed[agent] & alone).sum())
        assert (own["changed"], own["unique"]) == (count, unique)
        assert (own["density"], own["unique_share"]) == (count / len(alone), unique / count)
        assert own["rho"] == (count - unique) / unique
        assert own["lambda"] == 1 + 0.1 * min(own["rho"], 2)


def test_the_example_teaches_what_it_is_for():
    shipped = record("independent")
    scores, merges, agents = shipped["scores"], shipped["merges"], shipped["agents"]
    base = scores["base"]
    own = {"coding": "code", "tool": "tool", "memory": "memory"}
    for agent, domain in own.items():
        assert 0.15 <= base[domain] <= 0.6
        assert scores[agent][domain] >= 0.87
        assert scores[agent]["follow"] >= 0.95
    assert agents["coding"]["density"] * 5 < agents["tool"]["density"]
    assert agents["coding"]["density"] * 5 < agents["memory"]["density"]
    # Averaging sends the coding agent back to the base; RAM+ recovers it.
    assert merges["task-arithmetic 1/N"]["code"] <= base["code"] + 0.05
    assert merges["ram+"]["code"] >= 0.87


def test_ram_plus_is_above_every_rival_on_every_shared_seed():
    shipped = record("shared-style")
    assert str(shipped["seed"]) in shipped["seeds"]
    for seed, found in shipped["seeds"].items():
        average = {row: scores["average"] for row, scores in found["rows"].items()}
        assert average["RAM+"] >= max(average[rival] for rival in RIVALS) + 0.045, seed
        # Beyond chance on the same prompts, corrected for the number of rows.
        assert all(found["rows"][rival]["versus"]["outcome"] == "worse" for rival in RIVALS)
        # Openly: what is not among the paper's kept ratios.
        assert abs(average["RAM+"] - average[UNTRIMMED]) < 0.05, seed
        for rival, (_, _, over) in TUNED.items():
            chosen = found["chosen"][rival]["settings"]
            # None: the method's own default (1/N) was tried too, and was best.
            assert all(chosen[name] in (None, *values) for name, values in over.items())
    # The kept agents are those that were measured with the first seed.
    rows = shipped["seeds"][str(shipped["seed"])]["rows"]
    for model, scores in shipped["scores"].items():
        assert {column: rows[model][column] for column in scores} == scores


def test_no_tuned_rival_is_better_than_ram_plus_on_any_seed():
    for seed, found in record("shared-style")["seeds"].items():
        for rival, (_, _, over) in {**TUNED, **BEYOND}.items():
            row, chosen = found["rows"][rival], found["chosen"][rival]["settings"]
            assert row["versus"]["outcome"] in ("worse", "inconclusive"), (seed, rival)
            assert row["average"] <= found["rows"]["RAM+"]["average"], (seed, rival)
            assert chosen.keys() == over.keys()


def test_the_sum_costs_the_bases_skill_and_ram_plus_does_not():
    shipped = record("shared-style")
    assert list(shipped["agents"]) == list(FULL_PLAN.sets["shared-style"].skills)
    base = shipped["scores"]["base"]
    assert shipped["merges"]["task-arithmetic 1"]["follow"] < base["follow"] - 0.2
    assert shipped["merges"]["ram+"]["follow"] >= base["follow"] - 0.02


def test_what_else_was_tried_is_told_with_every_seed():
    shipped, trials = record("shared-style"), read_record(ROOT / "training" / "shipped" / "trials")
    tried = trials["tried"]["shared-style"]
    for title, seeds in tried.items():
        assert seeds.keys() == shipped["seeds"].keys(), title
        for found in seeds.values():
            assert {*RIVALS, UNTRIMMED, "RAM", "RAM+"} <= found["rows"].keys()
            assert found["validation"] == shipped["seeds"]["0"]["validation"]
    # With another base the order comes back.
    for found in trials["rebuilt"].values():
        average = {row: scores["average"] for row, scores in found["rows"].items()}
        assert average["sum"] < average["average"] < average["RAM+"]
        assert all(found["rows"][rival]["versus"]["outcome"] == "worse" for rival in RIVALS)
    # What the plan has, and nothing else.
    assert list(tried) == list(FULL_PLAN.tried["shared-style"])


def test_the_base_answers_easy_prompts():
    base = record("independent")["base"]
    assert len(base["attempts"]) == 1
    folder = ASSETS / "independent" / "base"
    easy = easy_scores(*load_model(folder, "cpu"))
    assert easy == base["attempts"][0]["easy"]
    assert is_up(easy, FULL_PLAN.pretrain)


def test_the_dense_set_shows_where_ram_cannot_help():
    shipped = record("dense")
    assert all(agent["unique_share"] < 0.1 for agent in shipped["agents"].values())
    assert shipped["merges"]["task-arithmetic 1"]["average"] > shipped["merges"]["ram"]["average"]


def test_models_answer_the_readmes_prompts_as_it_shows():
    examples = {
        "coding": ("code: f takes x , plus 9 then times 5 . answer:", "(x+9)*5"),
        "tool": ("tool: clock(loc) shop(thing) . user: shop for nut and clock in delhi . answer:",
                 "shop(thing=nut); clock(loc=delhi)"),
        "memory": ("memory: amy fig . bob kiwi . cal plum . ask bob", "kiwi"),
        "base": ("do: say fig 3 times . answer:", "fig fig fig"),
    }  # fmt: skip
    readme = (ASSETS / "independent" / "README.md").read_text(encoding="utf-8")
    for name, (prompt, answer) in examples.items():
        assert f"`{prompt}`" in readme
        assert f"`{answer}`" in readme
        folder = ASSETS / "independent" / name
        assert generate(*load_model(folder, "cpu"), [prompt]) == [f" {answer}"]
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert (model.dtype, model.num_parameters()) == (torch.bfloat16, 854_144)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        (output,) = model.generate(**inputs, max_new_tokens=24)
        assert tokenizer.decode(output, skip_special_tokens=True) == f"{prompt} {answer}"


def test_the_assets_stay_small_and_hold_safetensors_only():
    files = [file for name in SETS for file in (ASSETS / name).rglob("*") if file.is_file()]
    # The only packed files are tables of measured skills.
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md", ".gz"}
    assert sum(file.stat().st_size for file in ASSETS.rglob("*") if file.is_file()) <= 20 * 10**6


@pytest.mark.parametrize("name", SETS)
def test_shipped_analysis_equals_a_new_analysis(name):
    shipped = load_analysis(asset_path(name, ANALYSIS_FILE))
    fresh = example_analysis(name)
    np.testing.assert_array_equal(shipped.counts.patterns, fresh.counts.patterns)
    np.testing.assert_array_equal(shipped.magnitudes, fresh.magnitudes)
    # Sums of |tau| are exact; dot products are added in the vector width of the processor.
    previews = [pd.json_normalize(analysis.preview()) for analysis in (shipped, fresh)]
    pd.testing.assert_frame_equal(*previews, rtol=1e-12)
    for name in ("by_set", "pair_counts", "pair_sums", "conflicts", "cancelled"):
        expected = getattr(fresh.relations, name)
        np.testing.assert_array_equal(getattr(shipped.relations, name), expected)
    np.testing.assert_allclose(shipped.relations.dots, fresh.relations.dots, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shipped.steps.exact, fresh.steps.exact)
    np.testing.assert_array_equal(shipped.steps.layer_exact, fresh.steps.layer_exact)
    np.testing.assert_allclose(shipped.steps.loose_sums, fresh.steps.loose_sums, rtol=1e-9)
    assert shipped.fingerprints == fresh.fingerprints
    assert shipped.sources == fresh.sources
    assert shipped.warnings == fresh.warnings
    # It names no folder of the machine it was made on.
    assert all(not source.startswith("/") for source in shipped.sources.values())
    assert not any("/" in warning for warning in shipped.warnings)
