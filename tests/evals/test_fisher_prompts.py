"""Fisher information on prompts that say something about the model."""

import shutil
from pathlib import Path

import pytest
from chat_model import make_chat_model
from typer.testing import CliRunner

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.cli.main import commands
from ram_studio.errors import OutputError, SettingsError
from ram_studio.evals import fisher
from ram_studio.evals.answering.load import load_tokenizer
from ram_studio.evals.answering.text_encoder import encoder_of
from ram_studio.resources import asset_path


def test_another_model_gets_prompts_in_its_own_template(tmp_path):
    folder = make_chat_model(tmp_path / "chat")
    # Another vocabulary: the stand-in's is the example's.
    other = folder / "tokenizer.json"
    other.write_text(other.read_text("utf-8") + "\n", "utf-8")
    example = open_checkpoint(asset_path("independent", "coding"), name="coding")
    fisher.check_knows_examples(example)
    with pytest.raises(SettingsError, match=r"mine.: the built-in .* --prompts FILE"):
        fisher.check_knows_examples(open_checkpoint(folder, name="mine"))
    options = ["fisher", "--agent", f"mine={folder}", "--out", str(tmp_path / "out")]
    assert isinstance(CliRunner().invoke(commands, options).exception, SettingsError)
    assert not (tmp_path / "out").exists()

    def encoded(model: Path) -> list[int]:
        tokenizer = load_tokenizer(model)
        return fisher._encoded(tokenizer, encoder_of(tokenizer, model), "Say hi.")

    assert len(encoded(folder)) > len(load_tokenizer(folder).encode("Say hi."))
    base = asset_path("independent", "base")
    assert encoded(base) == list(load_tokenizer(base).encode("Say hi."))


def test_no_fisher_file_goes_into_a_models_folder(tmp_path):
    folder = shutil.copytree(asset_path("independent", "coding"), tmp_path / "coding")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    # The agent's name is that of its weights.
    options = ["fisher", "--agent", f"model={folder}", "--out", str(folder), "--examples", "1"]
    error = CliRunner().invoke(commands, options).exception
    assert isinstance(error, OutputError)
    assert "is a model's folder" in str(error)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
