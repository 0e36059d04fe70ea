"""Fisher information on prompts that say something about the model."""

import shutil
from pathlib import Path

import pytest
from chat_model import make_chat_model
from typer.testing import CliRunner

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.cli.main import commands
from ram_studio.errors import EvaluationError, OutputError, SettingsError
from ram_studio.evals import fisher
from ram_studio.evals.answering import chat_template
from ram_studio.evals.answering.load import load_tokenizer
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
        return fisher._encode_prompts(load_tokenizer(model), model, ["Say hi."])[0]

    assert len(encoded(folder)) > len(load_tokenizer(folder).encode("Say hi."))
    base = asset_path("independent", "base")
    assert encoded(base) == list(load_tokenizer(base).encode("Say hi."))


def test_slow_templates_are_bounded_and_the_model_is_named(tmp_path, monkeypatch):
    """Each prompt had its own five seconds, and the reason stood alone."""
    monkeypatch.setattr(chat_template, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(chat_template, "ALL_SLOW_SECONDS", 0.3)
    busy = "{% for a in range(2000) %}{% for b in range(4000) %}{% endfor %}{% endfor %}x"
    folder = make_chat_model(tmp_path / "busy", template=busy)
    out = tmp_path / "out" / "busy.safetensors"
    told = f"^The chat template of {folder} fails: .* longer than 0.3 s together. Repair it.$"
    with pytest.raises(EvaluationError, match=told):
        fisher.estimate_fisher(open_checkpoint(folder, name="busy"), out, ["Hi."] * 200)
    assert not out.exists()


@pytest.mark.parametrize("lost", ["nothing", "config.json"])
def test_no_fisher_file_goes_into_a_models_folder(tmp_path, lost):
    """Weights without a config were overwritten."""
    agent = asset_path("independent", "coding")
    folder = shutil.copytree(agent, tmp_path / "coding")
    (folder / lost).unlink(missing_ok=True)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    # The agent's name is that of its weights.
    options = ["fisher", "--agent", f"model={agent}", "--out", str(folder), "--examples", "1"]
    error = CliRunner().invoke(commands, options).exception
    assert isinstance(error, OutputError)
    assert "is a model's folder" in str(error)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_line_separator_within_a_prompt_ends_none(tmp_path, monkeypatch):
    """A prompt with such a character became two."""
    seen = []
    monkeypatch.setattr(
        fisher, "estimate_fisher", lambda own, out, chosen, **_: seen.append(chosen)
    )
    (tmp_path / "prompts.txt").write_bytes("a\u2028b\x0cc\r\n\nd".encode())
    agent = asset_path("independent", "coding")
    options = ["fisher", "--agent", f"a={agent}", "--prompts", str(tmp_path / "prompts.txt")]
    CliRunner().invoke(commands, [*options, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert seen == [["a\u2028b\x0cc", "d"]]
