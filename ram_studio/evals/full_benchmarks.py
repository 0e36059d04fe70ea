"""Ready commands for the full benchmarks, with the models' paths filled in.

RAM Studio does not run these tools; it prints what to type. They need their own environments and
hours on a GPU. Options are those of lm-eval 0.4, vLLM's `serve`, bfcl-eval and MemAgent's scripts.
"""

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
        out: folder for what lm-eval writes.
    """
    return tuple(
        BenchmarkCommand(name, purpose, command)
        for name, path in models.items()
        for purpose, command in _commands(name, Path(path), Path(out))
    )


def _commands(name: str, path: Path, out: Path) -> tuple[tuple[str, str], ...]:
    folder = quote(str(path.expanduser().resolve()))
    arguments = quote(f"pretrained={path.expanduser().resolve()},dtype=auto")
    results = quote(str(out.expanduser().resolve() / name.replace("/", "-")))
    served, file = quote(name), quote(name.replace("/", "-"))
    return (
        (
            "GSM8K and IFEval in full, by lm-eval (pip install 'lm_eval[hf]')",
            f"lm_eval --model hf --model_args {arguments} --tasks gsm8k,ifeval "
            f"--apply_chat_template --batch_size auto --output_path {results}",
        ),
        (
            "serve the model for the next command and the last (pip install vllm)",
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
            f"bfcl generate --model MODEL_FAMILY --local-model-path {folder} --backend vllm "
            "--test-category non_live",
        ),
        (
            "BFCL: score those answers",
            "bfcl evaluate --model MODEL_FAMILY --test-category non_live",
        ),
        (
            "RULER with MemAgent's memory loop, typed in taskutils/memory_eval of "
            "github.com/BytedTsinghua-SIA/MemAgent",
            "python ruler_general.py --split niah_multikey_1 --length 8192 --api recurrent "
            f"--model {served} --tokenizer {folder} --save_file {file}",
        ),
    )
