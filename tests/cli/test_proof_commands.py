"""inspect, merge and verify as a user meets them: storage, hashes, what changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ram_studio.cli.tables import print_table
from ram_studio.resources import asset_path


def write(folder: Path, tensor: np.ndarray, **config: object) -> Path:
    folder.mkdir()
    save_file({"model.w": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


@pytest.fixture
def noisy(tmp_path: Path) -> list[str]:
    """Options of a float16 base and a float32 agent that is the base and noise below its digits."""
    random = np.random.default_rng(0)
    base = (random.random(3000, dtype=np.float32) + 1).astype(np.float16)
    noise = (random.random(3000, dtype=np.float32) - 0.5) * 4e-4
    write(tmp_path / "base", base)
    write(tmp_path / "coder", base.astype(np.float32) + noise, model_type="qwen2")
    return ["--base", str(tmp_path / "base"), "--agent", f"coder={tmp_path / 'coder'}"]


def test_a_dry_run_warns_as_the_merge_does(cli, noisy):
    code, _, err = cli("merge", *noisy, "--dry-run")
    assert code == 0
    assert 'warning: Agent "coder": 1 of 1 tensors are stored in F32' in err


def test_json_of_merges_has_their_warnings(cli, noisy, tmp_path):
    """Only the text had them."""
    for option in (["--dry-run"], ["--out", tmp_path / "m"]):
        code, out, _ = cli("merge", *noisy, *option, "--json")
        assert code == 0
        told = json.loads(out)["warnings"]
        assert any("1 of 1 tensors are stored in F32" in text for text in told), option


def test_inspect_warns_from_headers_and_judges_with_an_analysis(cli, noisy, tmp_path):
    code, out, err = cli("inspect", *noisy)
    assert (code, err) == (0, "")
    assert 'warning: Agent "coder": 1 of 1 tensors are stored in F32, in the base in F16' in out
    assert "its config differs" in out
    analysis = tmp_path / "s.safetensors"
    code, out, err = cli("analyze", *noisy, "--analysis", analysis)
    assert code == 0
    assert 'Agent "coder": storage, not training.' in err
    assert "storage" in out
    code, out, _ = cli("inspect", *noisy, "--analysis", analysis, "--json")
    storage = json.loads(out)["storage"]
    assert storage["is_complete"]
    coder = storage["agents"]["coder"]
    assert (coder["verdict"], coder["rounded"]["active"]) == ("storage", 0)
    assert coder["stored"]["density"] > 0.9
    assert [f["kind"] for f in storage["findings"] if f["level"] == "warn"] == ["config", "storage"]
    code, out, _ = cli("analyze", *noisy, "--json")
    assert json.loads(out)["storage"] == storage
    (tmp_path / "coder" / "config.json").unlink()
    write(tmp_path / "other", np.zeros(3000, np.float16))
    other = [*noisy[:2], "--agent", f"coder={tmp_path / 'other'}", "--analysis", analysis]
    code, _, err = cli("inspect", *other)
    assert code == 65
    assert "differs from the files given for coder" in err


def test_verify_says_match_or_names_what_differs(cli, noisy, tmp_path):
    out = tmp_path / "merged"
    assert cli("merge", *noisy, "--out", out)[0] == 0
    provenance = json.loads((out / "ram_studio.json").read_text())
    assert provenance["base"]["files"]["model.safetensors"]["hash"].startswith("blake3:")
    code, text, _ = cli("verify", out, "--full")
    assert code == 0
    assert [line.split(":")[0] for line in text.splitlines()] == ["MATCH"] * 3
    config = out / "config.json"
    before = config.read_bytes()
    config.write_bytes(before.replace(b"llama", b"llamb"))
    code, text, err = cli("verify", out)
    assert (code, text) == (65, "")
    assert "1 file changed after the merge" in err
    assert str(config) in err
    config.write_bytes(before)
    source = tmp_path / "coder" / "model.safetensors"
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    code, _, err = cli("verify", out, "--sources")
    assert code == 65
    assert 'Agent "coder"' in err
    assert "the content of `model.safetensors` differs" in err
    code, text, _ = cli("verify", out, "--json")  # without sources they do not matter
    assert json.loads(text)["match"] is True


def test_no_hash_leaves_the_hashes_out(cli, noisy, tmp_path):
    out = tmp_path / "merged"
    assert cli("merge", *noisy, "--out", out, "--no-hash")[0] == 0
    provenance = json.loads((out / "ram_studio.json").read_text())
    assert provenance["base"]["files"] is None
    code, text, _ = cli("verify", out, "--sources")
    assert code == 0
    assert "note: The provenance has no content hashes" in text


def test_a_lone_file_is_named_once(cli, tmp_path):
    missing, base = tmp_path / "none.safetensors", asset_path("independent", "base")
    _, _, err = cli("delta", "apply", base, missing, "--out", tmp_path / "out")
    assert err.startswith(f"ram-studio: Agent: {missing} is neither a local folder nor")
    _, _, err = cli("gallery", "none", "--out", tmp_path / "site")
    assert "RAM Studio. none is neither a local folder nor" in err
    (tmp_path / "ram_studio.json").write_text("{}")
    _, _, err = cli("verify", tmp_path / "ram_studio.json")
    told = "has no ram_studio.json; expected the folder of a checkpoint that RAM Studio merged."
    assert err == f"ram-studio: {tmp_path / 'ram_studio.json'} {told}\n"


def test_tensors_of_one_model_alone_are_named(cli, tmp_path):
    one = np.ones(2, np.float32)
    for name, own in (("base", "a.weight"), ("model", "b.weight")):
        write(tmp_path / name, one)
        save_file({"model.w": one, own: one}, tmp_path / name / "model.safetensors")
    _, out, _ = cli("diff", tmp_path / "base", tmp_path / "model")
    assert "note: 1 tensor of the base alone: `a.weight`." in out
    assert "note: 1 tensor of the model alone: `b.weight`." in out


def test_suites_names_health(cli):
    assert "health: only evaluate takes it" in cli("suites")[1]


def test_names_in_a_table_are_no_markup(capsys):
    print_table(("model", "[b]:smile:"), [("[i]", "[/b]")], title="a[/b]")
    out = capsys.readouterr().out
    assert all(text in out for text in ("a[/b]", "[b]:smile:", "[i]"))
