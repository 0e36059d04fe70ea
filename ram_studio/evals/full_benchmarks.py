"""Ready commands for the full benchmarks, with the models' paths filled in.

RAM Studio does not run these tools; it prints what to type. They need environments of their own and
hours on a GPU. Options are those of lm-eval 0.4.13, `vllm serve`, bfcl-eval 2026.3, MemAgent's
`ruler_general.py` and CURE's `eval.py`, read in sources or documentation; only lm-eval was run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

PORT = 8000


@dataclass(frozen=True)
class BenchmarkCommand:
    """A command line, for which model, and what it does."""

    model: str
    purpose: str
    command: str


def benchmark_commands(
    models: Mapping[str, str | Path], out: str | Path = "results"
) -> tuple[BenchmarkCommand, ...]:
    """Return the commands for every model, in the order in which they are typed.

    Args:
        models: name -> local folder; paths are made absolute and quoted for a POSIX shell.
        out: folder for what lm-eval and BFCL write.
    """
    return tuple(
        BenchmarkCommand(name, purpose, command)
        for name, path in models.items()
        for purpose, command in _commands(name, Path(path), Path(out))
    )


def _commands(name: str, path: Path, out: Path) -> tuple[tuple[str, str], ...]:
    place = path.expanduser().resolve()
    folder = quote(str(place))
    arguments = quote(f"pretrained={place},dtype=auto")
    stem = name.replace("/", "-")
    results = out.expanduser().resolve() / stem
    bfcl = f"BFCL_PROJECT_ROOT={quote(str(results / 'bfcl'))} bfcl"
    served, file = quote(name), quote(stem)
    template = " --apply_chat_template" if _has_chat_template(place) else ""
    return (
        (
            "GSM8K and IFEval in full, by lm-eval (pip install 'lm_eval[hf,ifeval]')",
            f"lm_eval --model hf --model_args {arguments} --tasks gsm8k,ifeval{template} "
            f"--batch_size auto --log_samples --output_path {quote(str(results))}",
        ),
        (
            "the same with its items in RAM Studio's store (pip install 'ram-studio[lm-eval]')",
            f"ram-studio evaluate {quote(f'{name}={place}')} --engine lm-eval --tasks gsm8k,ifeval",
        ),
        (
            "serve the model for the next command and for RULER (pip install vllm)",
            f"vllm serve {folder} --served-model-name {served} --port {PORT}",
        ),
        (
            "RAM Studio's own suites on that server",
            f"ram-studio evaluate {served} --endpoint http://127.0.0.1:{PORT}/v1 "
            "--suite tool,math,code,instructions,memory",
        ),
        (
            "BFCL (pip install 'bfcl-eval[oss_eval_vllm]'): replace MODEL_FAMILY by the entry of "
            "`bfcl models` whose call format this model speaks",
            f"{bfcl} generate --model MODEL_FAMILY --local-model-path {folder} --backend vllm "
            "--test-category non_live",
        ),
        (
            "BFCL: score those answers",
            f"{bfcl} evaluate --model MODEL_FAMILY --test-category non_live",
        ),
        (
            "RULER with MemAgent's memory loop on that server, typed in taskutils/memory_eval of "
            "github.com/BytedTsinghua-SIA/MemAgent; replace DATA by the folder of its eval_*.json",
            f"DATAROOT=DATA SERVE_PORT={PORT} python ruler_general.py --split niah_multikey_1 "
            f"--length 8192 --api recurrent --model {served} --tokenizer {folder} "
            f"--save_file {file}",
        ),
        (
            "CURE: its data, typed in data of github.com/Gen-Verse/CURE",
            "python download_data.py --dataset CodeContests",
        ),
        (
            "CURE: code accuracy (ACC), unit tests (UT) and best of n, typed in evaluation of the "
            "same; it runs what the model writes with your rights, so use a machine to spare",
            f"python eval.py --pretrained_model {folder} --dataset CodeContests --use_api False "
            "--single_eval False --gpu_groups '[[0]]'",
        ),
    )


def _has_chat_template(folder: Path) -> bool:
    """Return whether a model folder brings a chat template; lm-eval refuses to apply none."""
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        # Unknown, as before a download: instruction-tuned models have one.
        return not folder.is_dir()
    return bool(isinstance(settings, dict) and settings.get("chat_template"))
