"""A small model folder with a chat template and room for long prompts, made from the example."""

import json
import shutil
from pathlib import Path

from ram_studio.resources import asset_path

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL_TEMPLATE = "{% if tools %}TOOLS {{ tools | tojson }} {% endif %}" + TEMPLATE


def make_chat_model(
    folder: Path, *, template: str | None = TEMPLATE, context: int = 4096, agent: str = "base"
) -> Path:
    """Copy an example model, give it a longer context and, unless None, a chat template."""
    shutil.copytree(asset_path("independent", agent), folder)
    for name, changes in (
        ("config.json", {"max_position_embeddings": context}),
        ("tokenizer_config.json", {"model_max_length": context}),
    ):
        change_json(folder / name, **changes)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def change_json(file: Path, **changes: object) -> None:
    """Write some of a JSON file's values anew."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
