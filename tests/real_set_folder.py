"""A small folder of the real set: a random base, agents, and made-up answers to real questions."""

from __future__ import annotations

import json
import random
import shutil
import string
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from training.real_set import measure
from training.real_set.merges import merges
from training.real_set.tasks import SKILLS, Question, draw, is_right

END = "<|end|>"
COUNTS = {"test": 12, "validation": 4}


def make_base(folder: Path) -> Path:
    """Write a random bfloat16 model in the layout of the base; letters are its tokens."""
    letters = {c: i for i, c in enumerate([END, *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = "{{ messages[0]['content'] }}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def first_merges(count: int) -> list[str]:
    """Return the options that let `measure` ask so many merges."""
    return [word for merge in merges()[:count] for word in ("--merge", merge.label)]


def make_agents(base: Path, folder: Path) -> Path:
    """Copy the base to folder/base, with agents that moved every fifth, fourth, third element."""
    shutil.copytree(base, folder / "base")
    weights = load_file(base / "model.safetensors")
    for step, skill in zip((5, 4, 3), SKILLS, strict=True):
        moved = {name: value.clone() for name, value in weights.items()}
        for value in moved.values():
            value.view(-1)[::step] += 0.0625
        for end, dtype in (("", torch.bfloat16), ("-float32", torch.float32)):
            agent = folder / "agents" / f"{skill}{end}"
            shutil.copytree(base, agent)
            own = {name: value.to(dtype) for name, value in moved.items()}
            save_file(own, agent / "model.safetensors", {"format": "pt"})
    (folder / "log").mkdir()
    return folder


def make_other_seed(folder: Path) -> dict[str, str]:
    """Make agents of seed 1, each of which is another one of the first; return which."""
    turned = dict(zip(SKILLS, SKILLS[1:] + SKILLS[:1], strict=True))
    for skill, other in turned.items():
        for end in ("", "-float32"):
            own = folder / "agents" / f"{skill}-seed1{end}"
            shutil.copytree(folder / "agents" / f"{other}{end}", own)
    return turned


def make_answers(folder: Path, counts: Mapping[str, int] = COUNTS) -> None:
    """Write what `measure.py` writes, with made-up answers of all merges."""
    out = folder / "measure"
    out.mkdir()
    measure.measure_updates(measure.Sources(folder / "base", folder / "agents"), out)
    asked = {(s, k): draw(k, s, n) for s, n in counts.items() for k in SKILLS}
    names = ["base", *SKILLS, *(merge.label for merge in merges())]
    with (out / "answers.jsonl").open("w", encoding="utf-8") as file:
        for model in names:
            for (split, skill), questions in asked.items():
                rng = random.Random(f"{model}/{split}/{skill}")
                for number, question in enumerate(questions):
                    text = _answer(question, questions[number - 1], rng, _share(model, skill))
                    line = {"model": model, "split": split, "skill": skill, "question": number}
                    line |= {"right": is_right(question, text), "answer": text}
                    file.write(json.dumps(line) + "\n")
    score = {"domains": {"humaneval": {"correct": 3, "n": 4, "score": 0.75}}}
    others = {"suite": "humaneval", "models": {"base": score, "ram+": score}}
    (out / "other_suites.json").write_text(json.dumps(others))
    settings = {"seed": 0, "learning_rate": 4e-06}
    for skill in SKILLS:
        step = {"step": 1, "reward": 0.5, "seconds": 60.0, "validation": 0.5, "kl": 0.0}
        lines = [{"settings": {"skill": skill, **settings}}, step]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "log" / f"{skill}.jsonl").write_text(text, encoding="utf-8")


def _share(model: str, skill: str) -> float:
    if model in SKILLS:
        return 1.0 if model == skill else 0.3
    return {"base": 0.1, "ram+": 0.9, "task-arithmetic scale=0.3333": 0.5}.get(model, 0.7)


def _answer(question: Question, other: Question, rng: random.Random, share: float) -> str:
    if rng.random() < share:
        return question.solution
    return rng.choice([other.solution, f"I think that {question.solution} and so on.", ""])


def run(module: object, folder: Path, *options: str) -> None:
    """Run a module of training.real_set as its command does."""
    before, sys.argv = sys.argv, ["x", "--folder", str(folder), *options]
    try:
        module.main()  # type: ignore[attr-defined]
    finally:
        sys.argv = before
