"""Train the agents of the real set: `python -m training.real_set.train --agent math`.

Everything is in one folder: `base`, `agents/NAME` (bfloat16) and `agents/NAME-float32`,
`log/NAME.jsonl` (one line a step) and, while an agent trains, `state/NAME.pt` and the weights of
its best check. Stop it at any time and start it again: it continues from the latest saved step with
the same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from training.real_set.grpo import Settings, Trainer
from training.real_set.model import default_folder, get_base, of_seed, open_model
from training.real_set.tasks import SKILLS, SPLITS, draw

PUBLISHED = {"train": 160, "validation": 40, "test": 200}


def main() -> None:
    """Read the command line and train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", choices=(*SKILLS, "all"), default="all")
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--base", type=Path, help="a folder of the base; made when left out")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes NAME-seedN")
    parser.add_argument("--max-steps", type=int, default=Settings("math").max_steps)
    parser.add_argument("--learning-rate", type=float, default=Settings("math").learning_rate)
    parser.add_argument("--prompts", type=int, default=Settings("math").prompts, help="a step")
    parser.add_argument("--group", type=int, default=Settings("math").group, help="answers to each")
    parser.add_argument(
        "--threads", type=int, default=Settings("math").threads, help="that answer, on a CPU"
    )
    parser.add_argument("--kl", type=float, default=0.0, help="weight of the KL to the base")
    parser.add_argument(
        "--sft", action="store_true", help="learn written solutions instead; makes NAME-sft"
    )
    parser.add_argument("--save-minutes", type=float, default=15.0, help="between saved steps")
    args = parser.parse_args()
    base = args.base or get_base(args.folder)
    write_prompts(args.folder / "prompts")
    for skill in SKILLS if args.agent == "all" else (args.agent,):
        settings = Settings(
            skill,
            seed=args.seed,
            learning_rate=args.learning_rate,
            prompts=args.prompts,
            group=args.group,
            kl=args.kl,
            threads=args.threads,
            max_steps=args.max_steps,
            sft=args.sft,
            temperature=1.0 if args.sft else Settings.temperature,
        )
        train(settings, base, args.folder, save_seconds=60 * args.save_minutes)


def train(settings: Settings, base: Path, folder: Path, *, save_seconds: float = 900.0) -> Path:
    """Return the folder of an agent, trained first where it is missing.

    The agent is the best check on the validation questions; of equal ones the later.

    Raises: SystemExit: after SIGTERM or Ctrl+C; the latest step was saved.
    """
    name = of_seed(settings.skill + "-sft" * settings.sft, settings.seed)
    agent = folder / "agents" / name
    if agent.is_dir():
        return agent
    for part in ("agents", "log", "state"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    log, state = folder / "log" / f"{name}.jsonl", folder / "state" / f"{name}.pt"
    best = state.with_name(f"{name}-best.safetensors")
    trainer = open_trainer(settings, base)
    if state.exists():
        trainer.load_state(torch.load(state, mmap=True, weights_only=True))
    else:
        best.unlink(missing_ok=True)
    # Steps logged after the saved one are repeated.
    write_log(log, trainer)
    saved = time.monotonic()
    with ending() as ended:
        while not trainer.is_done:
            point = trainer.take_step()
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(point) + "\n")
            if trainer.is_best:
                save_masters(trainer.masters, best)
            if ended or time.monotonic() - saved > save_seconds:
                save_state(trainer, state)
                saved = time.monotonic()
            if ended:
                raise SystemExit(f"stopped after step {trainer.step}; run again to continue")
    masters = load_file(best) if best.exists() else trainer.masters
    save_agent(masters, base, Path(f"{agent}-float32"), torch.float32)
    save_agent(masters, base, agent, torch.bfloat16)
    for file in (state, best):
        file.unlink(missing_ok=True)
    return agent


def open_trainer(settings: Settings, base: Path) -> Trainer:
    """Return a trainer whose model is the base."""
    from transformers import AutoTokenizer

    # Mapped from the file, so that it takes no memory.
    weights = load_file(base / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    return Trainer(open_model(base), tokenizer, settings, weights)


def write_prompts(folder: Path) -> None:
    """Write the first questions of every skill and split, once."""
    folder.mkdir(parents=True, exist_ok=True)
    for skill in SKILLS:
        for split in SPLITS:
            lines = [json.dumps(asdict(q)) for q in draw(skill, split, PUBLISHED[split])]
            (folder / f"{skill}-{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def write_log(log: Path, trainer: Trainer) -> None:
    """Write the conditions on which the agent depends, and the steps."""
    first = {"settings": asdict(trainer.settings), "torch": torch.__version__}
    lines = [{**first, "dtype": str(trainer.model.dtype)}, *trainer.curve]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def save_state(trainer: Trainer, path: Path) -> None:
    """Write the state, atomically."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(trainer.state(), unfinished)
    os.replace(unfinished, path)


def save_masters(masters: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the weights of the best check, atomically."""
    unfinished = path.with_suffix(".unfinished")
    save_file({name: value.cpu() for name, value in masters.items()}, unfinished)
    os.replace(unfinished, path)


def save_agent(
    masters: Mapping[str, torch.Tensor], base: Path, out: Path, dtype: torch.dtype
) -> None:
    """Write a checkpoint with the base's other files; it appears atomically."""
    unfinished = Path(tempfile.mkdtemp(prefix=".agent-", dir=out.parent))
    for file in base.iterdir():
        if file.name not in ("model.safetensors", "README.md"):
            shutil.copy2(file, unfinished)
    config = json.loads((base / "config.json").read_text("utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    weights = {name: value.to(dtype).cpu().contiguous() for name, value in masters.items()}
    save_file(weights, unfinished / "model.safetensors", {"format": "pt"})
    unfinished.chmod(0o755)
    os.rename(unfinished, out)


@contextmanager
def ending() -> Iterator[list[int]]:
    """Yield a list that is filled at a request to end the process; the step is finished first."""
    asked: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda got, _: asked.append(got)) for number in signals]
    try:
        yield asked
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
