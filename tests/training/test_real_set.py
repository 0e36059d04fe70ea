"""The real set's tasks and trainer, on a random model with letters as tokens."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from real_set_folder import END
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from training.real_set import grpo, train
from training.real_set.grpo import Settings, Trainer
from training.real_set.model import open_model
from training.real_set.tasks import SKILLS, SPLITS, Question, draw, is_right, split_of


def be_lenient(patch):
    """Have a judge that a random model pleases now and then."""
    pleases = lambda _, text: len(set(text.lower())) % 2 == 0  # noqa: E731
    patch.setattr(grpo, "is_right", pleases)
    patch.setattr(grpo, "reward", lambda *asked: float(pleases(*asked)))
    patch.setattr(grpo, "MAX_NEW_TOKENS", dict.fromkeys(SKILLS, 6))


@pytest.fixture
def lenient(monkeypatch):
    be_lenient(monkeypatch)


SETTINGS = Settings(
    "math", learning_rate=2e-3, prompts=2, group=4, max_steps=4, check_every=2, validation=4, kl=0.1
)
ALL_STEPS = replace(SETTINGS, stop_at=2.0)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    """A folder with an agent of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        be_lenient(patch)
        train.train(ALL_STEPS, base, folder)
    return folder


ONE_CALL = '[{"name": "f", "arguments": {"n": 1}}]'
CALL = '{"name": "f", "arguments": {"x": 1.0, "y": "z"}}'
OTHER = '{"name": "g", "arguments": {}}'


@pytest.mark.parametrize("skill", SKILLS)
def test_splits_share_no_question_across_seeds(skill):
    drawn = {s: {q.prompt for n in (0, 1) for q in draw(skill, s, 60, n)} for s in SPLITS}
    assert all(len(prompts) > 60 for prompts in drawn.values())
    assert len(set.union(*drawn.values())) == sum(map(len, drawn.values()))
    assert all(split_of(Question(skill, p, "")) == s for s in SPLITS for p in drawn[s])
    assert draw(skill, "test", 5) == draw(skill, "test", 60)[:5]


@pytest.mark.parametrize("skill", SKILLS)
def test_judge_accepts_every_solution_and_no_others(skill):
    asked = draw(skill, "train", 80)
    assert [q for q in asked if not is_right(q, q.solution)] == []
    pairs = [(a, b) for a in asked for b in asked if a.gold != b.gold]
    assert [(a, b) for a, b in pairs if is_right(a, b.solution)] == []
    assert not any(is_right(q, "") or is_right(q, "I do not know.") for q in asked)


@pytest.mark.parametrize(
    ("skill", "gold", "answer", "verdict"),
    [
        ("math", "24", "4 * 6 = 24", True),
        ("math", "24", "He gets 24 euros.", True),
        ("math", "24", "24, since 4 * 6", False),
        ("math", "24", "4 * 6 = 24\nThat is all.", False),
        ("math", "24", "124", False),
        ("math", "24", "-24", False),
        ("math", "24", "24.5", False),
        ("tool", ONE_CALL, '[{"arguments":{"n":1},"name":"f"}]', True),
        ("tool", ONE_CALL, '[{"name":"f","arguments":{"n":"1"}}]', False),
        ("tool", ONE_CALL, '[{"name":"f","arguments":{"n":true}}]', False),
        ("tool", "[1]", "```json\n[1]\n```", False),
        ("tool", "[1]", "Here it is: [1]", False),
        ("tool", "[1]", "[" * 9999, False),
        ("memory", "old mill, 1234", "She works in the old mill. The code is 1234.", True),
        ("memory", "old mill, 1234", "1234", False),
        ("memory", "old mill, 1234", "The old mill: 1234 or 1235", False),
        ("memory", "old mill, 1234", "The mill: 1234", False),
    ],
)
def test_judge_of_handmade_answers(skill, gold, answer, verdict):
    assert is_right(Question(skill, "", gold), answer) is verdict


@pytest.mark.parametrize(
    ("skill", "gold", "answer", "earned"),
    [
        ("math", "40", "50 - 10 = 40", 1.0),
        ("math", "40", "50 - 10 = 30", 0.0),
        ("math", "162", "She has 66 + 8 * 12 = 108.", 0.3),
        ("math", "162", "(66 + 8) * 12 = 108", 0.0),
        ("math", "162", "66 + 8 * 12\n= 108", 0.0),
        ("math", "162", "9**9**9**9 = 1", 0.0),
        ("memory", "old mill, 1234", "She works in the old mill. The code is 1234.", 1.0),
        ("memory", "old mill, 1234", "The old mill: 1234 or 1235", 0.5),
        ("memory", "old mill, 1234", "The mill: 1234", 0.5),
        ("memory", "old mill, 1234", "The mill: 1235", 0.0),
        ("tool", f"[{CALL}, {OTHER}]", f"[{CALL}, {OTHER}]", 1.0),
        ("tool", f"[{CALL}, {OTHER}]", f"[{CALL}]", 0.45),
        ("tool", f"[{CALL}, {OTHER}]", f"[{OTHER}, {CALL}]", 0.0),
        # Two of four facts: the name and y agree, both values of x stand alone.
        ("tool", f"[{CALL}]", f"[{CALL.replace('1.0', '1')}]", 0.45),
        ("tool", f"[{CALL}]", f"[{CALL}, {CALL}, {CALL}]", 0.3),
        ("tool", f"[{CALL}]", CALL, 0.0),
        ("tool", f"[{CALL}]", "[]", 0.0),
        ("tool", f"[{CALL}]", '[{"name": "f", "arguments": [1]}]', 0.0),
    ],
)
def test_reward_counts_the_parts_that_are_right(skill, gold, answer, earned):
    assert grpo.reward(Question(skill, "", gold), answer) == pytest.approx(earned)


def test_packed_answers_have_the_probabilities_of_their_own_rows(base):
    model = Qwen2ForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    trainer = Trainer(model, None, replace(SETTINGS, temperature=0.5), {})
    prompts, answers = ([5, 9, 11, 40], [5, 9, 11, 2, 8]), [[7, 8, 9], [60], [12, 13, 14, 15]]
    groups = [grpo.Group(prompt, answers, [0.0] * 3) for prompt in prompts]
    assert grpo.together([*groups, groups[0], grpo.Group([4] * 9, [], [])]) == [
        [*groups, groups[0]],
        [grpo.Group([4] * 9, [], [])],
    ]
    packed = trainer._log_p(groups)
    alone = []
    for prompt in prompts:
        for answer in answers:
            ids = torch.tensor([prompt + answer])
            logits = model(input_ids=ids).logits[0].div(0.5).log_softmax(-1)
            alone += [logits[len(prompt) - 1 + i, token] for i, token in enumerate(answer)]
    torch.testing.assert_close(packed, torch.stack(alone), rtol=0, atol=2e-5)


def test_step_is_adam_on_float32_and_rounds_to_nearest():
    torch.manual_seed(1)
    start, gradients = torch.randn(50).bfloat16(), torch.randn(3, 50)
    weight, master = start.clone(), start.float()
    first, second = torch.zeros(50), torch.zeros(50)
    oracle = torch.nn.Parameter(start.float())
    optimizer = torch.optim.Adam([oracle], lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    for count, gradient in enumerate(gradients, 1):
        grpo.adam(weight, gradient, master, first, second, rate=1e-3, scale=0.5, count=count)
        oracle.grad = gradient * 0.5
        optimizer.step()
    torch.testing.assert_close(master, oracle.detach(), rtol=0, atol=1e-7)
    assert torch.equal(weight, master.bfloat16())
    assert not torch.equal(weight, start)


def test_a_model_in_float32_holds_what_16_bits_hold(base):
    wanted = open_model(base, torch.bfloat16).state_dict()
    trainer = Trainer(open_model(base, torch.float32), None, SETTINGS, wanted)
    assert trainer.density(0.0) == 0
    before = {name: value.clone() for name, value in trainer.masters.items()}
    for weight in trainer.weights.values():
        weight.grad = torch.ones_like(weight)
    trainer._update()
    assert all(torch.equal(w, w.bfloat16().float()) for w in trainer.weights.values())
    # The master moved by less than a cell of bfloat16, and is kept apart from the weight.
    assert any(not torch.equal(trainer.masters[n], trainer.weights[n]) for n in before)
    # A run that began in bfloat16 goes on in it.
    trainer.load_state({**trainer.state(), "dtype": torch.bfloat16})
    assert {weight.dtype for weight in trainer.weights.values()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in trainer.model.buffers()} == {torch.float32}


def test_reward_goes_up_where_the_judge_wants_one_letter(base, monkeypatch):
    monkeypatch.setattr(grpo, "reward", lambda _, text: float(text[:1] in "abcdefgh"))
    monkeypatch.setattr(grpo, "is_right", lambda *_: False)
    monkeypatch.setattr(grpo, "MAX_NEW_TOKENS", dict.fromkeys(SKILLS, 2))
    settings = replace(SETTINGS, prompts=4, group=8, kl=0.0, max_steps=12, check_every=12)
    trainer = train.open_trainer(replace(settings, learning_rate=5e-3, stop_at=2.0), base)
    while not trainer.is_done:
        trainer.take_step()
    rewards = [point["reward"] for point in trainer.curve]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.5, rewards


def test_resume_is_bit_identical(base, whole, tmp_path, lenient):
    taken = 0

    class Interrupted(Exception):
        pass

    def interrupt(trainer, path, save=train.save_state):
        nonlocal taken
        save(trainer, path)
        taken += 1
        if taken < 4:
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "save_state", interrupt)
        for _ in range(3):
            with pytest.raises(Interrupted):
                train.train(ALL_STEPS, base, tmp_path, save_seconds=0.0)
        train.train(ALL_STEPS, base, tmp_path, save_seconds=0.0)
    for name in ("math", "math-float32"):
        files = (folder / "agents" / name / "model.safetensors" for folder in (whole, tmp_path))
        one, other = map(load_file, files)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert timeless(whole) == timeless(tmp_path)
    assert not list((tmp_path / "state").iterdir())


def test_terminated_run_saves_its_step_and_goes_on(base, whole, tmp_path, lenient, monkeypatch):
    take_step, before = Trainer.take_step, signal.getsignal(signal.SIGTERM)

    def take_and_be_terminated(trainer):
        point = take_step(trainer)
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return point

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", take_and_be_terminated)
        with pytest.raises(SystemExit, match="stopped after step 2"):
            train.train(ALL_STEPS, base, tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before
    train.train(ALL_STEPS, base, tmp_path)
    assert timeless(whole) == timeless(tmp_path)


def timeless(folder):
    """Return the log without what depends on the clock."""
    lines = (folder / "log" / "math.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.endswith("seconds")} for line in lines
    ]


def test_log_and_checkpoints_tell_the_same(base, whole):
    agent = whole / "agents" / "math"
    own, exact = (load_file(f"{agent}{end}/model.safetensors") for end in ("", "-float32"))
    stored = load_file(base / "model.safetensors")
    changed = sum(int((own[key] != stored[key]).sum()) for key in stored)
    density = changed / sum(value.numel() for value in stored.values())
    # The agent is what its best check saw, the later of equal ones.
    checks = [point for point in timeless(whole) if "validation" in point]
    last = max(reversed(checks), key=lambda point: point["validation"])
    assert 0 < density < 1
    assert last["density"] == density
    assert last["density_1e-5"] <= density
    assert last["kl"] > 0
    assert all(torch.equal(own[key], exact[key].bfloat16()) for key in own)
    assert Qwen2ForCausalLM.from_pretrained(f"{agent}-float32").dtype == torch.float32


def test_sft_learns_the_written_solutions(base, tmp_path, lenient):
    settings = replace(SETTINGS, sft=True, temperature=1.0, kl=0.0)
    trainer = train.open_trainer(settings, base)
    trainer.step, asked = 1, draw("math", "train", 2)
    groups, point = trainer._solve()
    assert point == {"step": 1}
    solved = [trainer.tokenizer.decode(a) for group in groups for a in group.answers]
    # The tokenizer of letters forgets blanks.
    assert solved == [question.solution.replace(" ", "") + END for question in asked]
    trainer._backward(groups, {})
    found = {name: weight.grad.clone() for name, weight in trainer.weights.items()}
    trainer.model.zero_grad()
    # The oracle: the library's loss of each question alone, weighed by its answer's tokens.
    total = sum(len(group.answers[0]) for group in groups)
    for group in groups:
        answer = group.answers[0]
        ids = torch.tensor([group.prompt + answer])
        labels = torch.tensor([[-100] * len(group.prompt) + answer])
        (trainer.model(input_ids=ids, labels=labels).loss * len(answer) / total).backward()
    for name, weight in trainer.weights.items():
        torch.testing.assert_close(found[name], weight.grad, rtol=0.05, atol=2e-3)
    agent = train.train(settings, base, tmp_path)
    assert agent.name == "math-sft"
    model = Qwen2ForCausalLM.from_pretrained(agent, dtype=torch.float32)
    before, after = (
        Trainer(m.float(), None, settings, {})._log_p([groups[0]]).mean()
        for m in (open_model(base), model)
    )
    assert after > before + 0.5
