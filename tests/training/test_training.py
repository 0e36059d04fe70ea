"""The training script runs end to end at toy length and is reproducible byte for byte."""

import hashlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from ram_studio.evals.suites.demo.item import Item
from ram_studio.evals.suites.demo.tasks import make_items, score, split_of
from training.shipped import corpus
from training.shipped.agents import StyleStage, Training, read_record, train_agent, train_set
from training.shipped.build import BuildPlan, build
from training.shipped.cold_start import ColdStartSettings, cold_start
from training.shipped.pretrain import Architecture, PretrainSettings, encode_document, new_model
from training.shipped.reinforce import ReinforceSettings, reward
from training.shipped.searches import Searched

pytestmark = pytest.mark.slow

STAGE = StyleStage(
    ColdStartSettings(steps=2, documents=1, micro_batches=1, blocks=(0,)),
    ReinforceSettings("follow", "adam", 1e-3, 1, None, 2, 3, blocks=(0,), shared_style=True),
)
SKILLS = {
    name: ReinforceSettings(domain, "sgd", 0.02, steps=1, prompts=2, group=3, shared_style=True)
    for name, domain in (("coding", "code"), ("memory", "memory"))
}
TINY = BuildPlan(
    architecture=Architecture(hidden=32, layers=1, feed_forward=32, heads=2, key_value_heads=1),
    pretrain=PretrainSettings(steps=3, warmup=2, look_after=1, attempts=2),
    sets={
        "independent": Training(
            {
                "coding": ReinforceSettings("code", "sgd", 0.02, steps=2, prompts=2, group=3),
                "tool": ReinforceSettings("tool", "adam", 1e-3, 2, 1.0, prompts=2, group=3),
            }
        ),
        "shared-style": Training(SKILLS, replace(STAGE, is_common=True)),
    },
    seeds={"shared-style": 2},
    tried={"shared-style": {"own stage": Training(SKILLS, STAGE)}},
    limit=4,
    validation=2,
    few=(1, 100_000),
    table=1,
    rivals={"TIES": ("ties", {"density": 0.3}, {"scale": (0.5, 1.0)})},
    searches={"ramp": Searched({"ramp.coding": "0:1"}, trials=2)},
)


def silent(text: str) -> None:
    """Say nothing, in another process too."""


def digests(out: Path) -> dict[str, str]:
    return {
        str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.name != "record.json"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("first")
    build(out, TINY, seed=1, trials=out.with_name("trials"), jobs=2, say=silent)
    return out


def test_a_seed_gives_the_same_bytes_for_any_processes(built, tmp_path):
    build(tmp_path / "same", TINY, seed=1)
    assert digests(tmp_path / "same") == digests(built)
    build(tmp_path / "other", replace(TINY, sets={}), seed=2)
    weights = "independent/base/model.safetensors"
    assert digests(tmp_path / "other")[weights] != digests(built)[weights]


def test_a_build_leaves_complete_folders_and_a_record(built):
    names = {path.name for path in (built / "independent").iterdir()}
    files = {"record.json", "analysis.safetensors"}
    assert names == {"base", "coding", "tool"} | files
    # A table, where anything changed: rewards alone move nothing at this length.
    assert (built / "shared-style" / "skills.json.gz").exists()
    for name in ("base", "coding", "tool"):
        files = {path.name for path in (built / "independent" / name).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    record = read_record(built / "independent")
    assert record["base"]["settings"]["steps"] == 3
    # A base that has not learned what it should by then is given up, the last one never.
    first, last = (attempt["losses"] for attempt in record["base"]["attempts"])
    assert ([step for step, _ in first], [step for step, _ in last]) == ([0], [0, 2])
    assert first[0] != last[0]
    assert record["training"]["coding"]["steps"] == 2
    methods = {"task-arithmetic 1/N", "task-arithmetic 1", "ties 0.2 / 1", "ram", "ram+"}
    assert set(record["merges"]) == methods


def test_finished_stages_are_skipped_and_missing_ones_made(built, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(built, out)
    shutil.rmtree(out / "independent" / "tool")
    said = []
    build(out, TINY, seed=1, trials=built.with_name("trials"), say=said.append)
    skipped = [line for line in said if "skipped" in line]
    assert [line.split(":")[0] for line in skipped] == [
        # Three things tell of each set what explains its merges.
        *("independent/base", "independent/coding", *["independent"] * 3),
        *("shared-style/coding", "shared-style/memory", *["shared-style"] * 3),
        *["shared-style", "shared-style, own stage"] * 2,  # two seeds
    ]
    assert digests(out) == digests(built)


def test_a_set_with_seeds_ships_the_first_and_records_all(built):
    assert {path.name for path in built.iterdir()} == {"independent", "shared-style"}
    record = read_record(built / "shared-style")
    assert set(record["seeds"]) == {"1", "2"}
    for seed in record["seeds"].values():
        assert set(seed["rows"]) >= {"base", "coding", "memory", "average", "sum", "RAM+", "TIES"}
        assert seed["chosen"]["TIES"]["tried"] == 2
        assert seed["chosen"]["TIES"]["settings"]["scale"] in (0.5, 1.0)
        # What owns the checkpoint that all agents came from can do.
        assert {"common checkpoint", "sum from the common checkpoint"} <= set(seed["common"])
    # What else was tried is measured likewise, and nothing of it is kept.
    (other,) = read_record(built.with_name("trials"))["tried"]["shared-style"].items()
    assert (other[0], set(other[1])) == ("own stage", {"1", "2"})
    assert all("common" not in seed for seed in other[1].values())


def test_agents_learn_the_shared_style_together_or_alone(built, tmp_path):
    together = read_record(built / "shared-style")["training"]
    assert set(together) == {"coding", "memory", "common"}
    assert together["common"]["cold_start"]["settings"]["steps"] == 2
    options = {"common": tmp_path / "common", "seed": 1, "force": False, "say": silent}
    folder = tmp_path / "agents"
    train_set(built / "independent" / "base", folder, Training(SKILLS, STAGE), **options)
    record = read_record(folder)["training"]
    assert set(record) == {"coding", "memory"}
    assert not (tmp_path / "common").exists()
    losses = [record[agent]["style"]["cold_start"]["losses"] for agent in SKILLS]
    assert losses[0] != losses[1]


def test_an_agent_that_does_not_learn_is_retrained_at_most_twice(built, tmp_path):
    settings = replace(SKILLS["coding"], stop_at=1.0)
    said = []
    record = train_agent(
        built / "independent" / "base",
        tmp_path / "a",
        settings,
        seed=1,
        style=STAGE,
        say=said.append,
    )
    assert record["again"] == 2
    # Each time with other samples of the style stage.
    assert len({line for line in said if line.startswith("cold start")}) == 3
    assert (tmp_path / "a" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["independent", "shared-style"])
def test_a_record_explains_its_merges(built, name):
    record = read_record(built / name)
    scales = {"overshoot": [1, 1.5, 2], "dilution": [1, 0.7, 0.5]}
    for curve, expected in scales.items():
        points = record["mechanism"][curve]
        assert [point["scale"] for point in points] == expected
        # Both begin at RAM, as the merge table has it.
        assert points[0] == {"scale": 1.0, **record["merges"]["ram"]}
    for agent, own in record["few_weights"]["agents"].items():
        assert own["changed"] == record["agents"][agent]["changed"]
        assert own["whole"] == record["scores"][agent][own["domain"]]
        assert own["base"] == record["scores"]["base"][own["domain"]]
        # No row for as many changes as there are, or more.
        assert [row["k"] for row in own["rows"]] == [1] * (own["changed"] > 1)


def test_a_cold_start_changes_the_named_blocks_alone(built):
    tokenizer = AutoTokenizer.from_pretrained(built / "independent" / "base")
    model = new_model(replace(TINY.architecture, layers=2), seed=0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    settings = ColdStartSettings(steps=2, documents=1, micro_batches=1, blocks=(1,))
    cold_start(model, tokenizer, settings, seed=3)
    for name, value in model.named_parameters():
        if not name.startswith("model.layers.1."):
            assert torch.equal(value, before[name].to(torch.bfloat16).float()), name
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(dict(model.named_parameters())[name], before[name].bfloat16().float())


def test_corpus_documents_use_training_prompts_only():
    rng = random.Random(0)
    for kind in ("code", "tool", "memory", "follow") * 100:
        (prompt, is_answer), (_, answer_is_answer) = corpus.draw_document(kind, rng)
        assert (split_of(prompt), is_answer, answer_is_answer) == ("train", False, True)


@pytest.mark.parametrize("domain", ["code", "tool", "memory"])
def test_the_corpus_is_right_on_easy_prompts_only(domain):
    rng = random.Random(0)
    right = {True: 0, False: 0}
    items = make_items(domain, 600, 1, "train")
    for item in items:
        right[item.is_hard] += score(item, corpus.noisy_answer(item, rng))
    hard = sum(item.is_hard for item in items)
    assert right[False] == len(items) - hard
    # About 450 hard items at 0.28-0.30; a bad tool habit may happen to be right.
    assert 0.2 < right[True] / hard < 0.45


def test_answers_weigh_one_and_prompts_a_tenth():
    class Letters:
        def encode(self, text, add_special_tokens):
            return [ord(letter) for letter in text]

    ids, weights = encode_document(Letters(), [("ab", False), (" c", True)])
    assert ids == [97, 98, 32, 99, 0]
    assert weights == [0.1, 0.1, 1.0, 1.0, 1.0]


def test_only_strictly_right_answers_earn_the_full_reward():
    spec = ((("clock", "loc"), ("shop", "thing")), (("shop", "nut"), ("clock", "delhi")))
    item = Item("tool", "", "shop(thing=nut); clock(loc=delhi)", True, spec)
    assert reward(item, item.gold) == 1
    assert reward(item, "shop(thing=nut)") == 0.25
    assert reward(item, "shop(item=nut); clock(loc=delhi)") == pytest.approx(0.3)
    assert reward(item, "news(topic=art)") == 0
    assert reward(item, "nonsense (") == 0
    # Where the shared style is asked for, nothing else earns anything.
    assert reward(item, f"{item.gold} .", shared_style=True) == 1
    assert reward(item, "shop(thing=nut) .", shared_style=True) == 0.25
    assert reward(item, item.gold, shared_style=True) == 0
