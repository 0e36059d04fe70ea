"""The storage report: what was trained and what only the storage format makes look so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_zoo import EMBEDDING, HEAD, make_zoo, write_folder

from ram_studio.checkpoints.fit.storage_report import StorageReport, storage_report
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.errors import AnalysisError

N = 20_000


def last_place(values: torch.Tensor) -> torch.Tensor:
    """Return one unit in the last place of bfloat16 at each of these numbers, as float32."""
    return torch.exp2(torch.floor(torch.log2(values.float().abs())) - 7)


@pytest.fixture(scope="module")
def base() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return ((torch.randn(N, generator=rng) * 0.05).abs() + 0.1).bfloat16()


def reports(
    folder: Path, base: torch.Tensor, **agents: torch.Tensor
) -> tuple[StorageReport, StorageReport]:
    """Write checkpoints of one tensor; return their report before and after a pass."""
    for name, tensor in {"base": base, **agents}.items():
        write_folder(folder / name, {"model.w": tensor})
        for file in ("tokenizer.json", "chat_template.jinja"):
            (folder / name / file).write_text("{}")
    fit = load(folder / "base", {name: folder / name for name in agents})
    analysis = analyze_report(fit)
    assert storage_report(fit, analysis).warnings == analysis.warnings
    return storage_report(fit), storage_report(fit, analysis)


def noise(base: torch.Tensor, seed: int, size: float = 0.48) -> torch.Tensor:
    """Return numbers of either sign below that share of the base's last place, float32."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.rand(N, generator=rng) - 0.5) * size * last_place(base)


def trained(base: torch.Tensor, seed: int, every: int = 10) -> torch.Tensor:
    """Return bfloat16 numbers of which each tenth is one last place away."""
    rng = torch.Generator().manual_seed(seed)
    bits = base.clone().view(torch.int16)
    bits += ((torch.randint(0, every, (N,), generator=rng) == 0) * 1).to(torch.int16)
    return bits.view(torch.bfloat16)


def one_noisy(base: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return two trained agents, and one that only looks so."""
    noisy = base.float() + noise(base, 1)
    return {"noisy": noisy, "tool": trained(base, 2), "code": trained(base, 3)}


def test_float32_noise_below_the_last_place_is_not_training(tmp_path, base):
    before, after = reports(
        tmp_path,
        base,
        noisy=base.float() + noise(base, 1),
        tool=trained(base, 2),
        code=trained(base, 3),
    )
    assert (before.is_complete, before.agents["noisy"].verdict) == (False, "unknown")
    assert [(f.kind, f.level) for f in before.findings] == [("dtype", "warn")]
    noisy = after.agents["noisy"]
    assert noisy.verdict == "storage"
    assert noisy.stored.density > 0.9
    assert noisy.rounded.density == 0.0
    assert (noisy.stored.rho, noisy.rounded.rho) == (pytest.approx(0.25, abs=0.05), 0.0)
    [finding] = [f for f in after.findings if f.level == "warn"]
    assert (finding.kind, finding.agents) == ("storage", ("noisy",))
    assert 'Agent "noisy": storage, not training' in finding.text
    for number in (f"{noisy.stored.density:.2%}", "0.00%", "F32", "BF16"):
        assert number in finding.text
    # The trained agents shared with the noise alone: as stored they seem to have nothing unique.
    for name in ("tool", "code"):
        agent = after.agents[name]
        assert agent.verdict == "training"
        assert agent.stored.active == agent.rounded.active
        assert agent.stored.rho > 5 > 1 > agent.rounded.rho


def test_real_training_in_float32_is_training(tmp_path, base):
    step = trained(base, 4).float()
    rng = torch.Generator().manual_seed(2)
    moved = step != base.float()
    noise = torch.where(moved, torch.rand(N, generator=rng) * 0.1 * last_place(base), 0)
    _, after = reports(tmp_path, base, wide=step, finer=step + noise, narrow=trained(base, 5))
    for agent in after.agents.values():
        assert agent.verdict == "training"
        assert agent.stored.density == agent.rounded.density == pytest.approx(0.1, abs=0.01)
    assert [f.kind for f in after.findings if f.level == "warn"] == []


def test_training_under_noise_is_partly_storage(tmp_path, base):
    noisy = trained(base, 5, every=4).float() + noise(base, 3)
    _, after = reports(tmp_path, base, both=noisy, tool=trained(base, 2), code=trained(base, 3))
    both = after.agents["both"]
    assert both.verdict == "partly-storage"
    assert both.rounded.density == pytest.approx(0.25, abs=0.02)
    assert "may be storage" in after.warnings[0]


def test_a_narrower_agent_beside_a_float32_base_is_storage(tmp_path, base):
    fine = base.float() + noise(base, 4, 1.0)
    tool, code = fine.clone(), fine.clone()
    tool[::10] *= 1.01
    code[1::10] *= 1.01
    _, after = reports(tmp_path, fine, narrow=fine.bfloat16(), tool=tool, code=code)
    assert after.agents["narrow"].verdict == "storage"
    assert "Convert the base to BF16" in after.warnings[0]


def test_one_model_in_two_storages_is_found_by_the_pass(tmp_path, base):
    one, other = trained(base, 6), trained(base, 7)
    before, after = reports(tmp_path, base, a=one, b=other, c=one.float())
    assert [f.kind for f in before.findings] == ["dtype"]
    assert [(f.kind, f.agents) for f in after.findings if f.level == "warn"] == [
        ("equal-agents", ("a", "c"))
    ]
    # The same sizes of change in other directions make another model.
    mirrored = 2 * base.double() - one.double()
    _, signs = reports(tmp_path / "signs", base, a=one, b=other, c=mirrored.float())
    assert [f.kind for f in signs.findings if f.level == "warn"] == []
    # One last place at one element is enough to be another model.
    bits = one.clone().view(torch.int16)
    bits[7] ^= 1
    moved = bits.view(torch.bfloat16).float()
    _, apart = reports(tmp_path / "apart", base, a=one, b=other, c=moved)
    assert [f.kind for f in apart.findings if f.level == "warn"] == []


def test_the_same_files_are_found_by_headers_and_said_once(tmp_path, base):
    before, after = reports(tmp_path, base, a=trained(base, 1), b=trained(base, 1), still=base)
    expected = {("equal-agents", ("a", "b")), ("equal-base", ("still",))}
    assert {(f.kind, f.agents) for f in before.findings} == expected
    assert sorted((f.kind, f.agents) for f in after.findings) == sorted(expected)
    assert after.agents["still"].verdict == "unchanged"
    assert after.agents["still"].stored.density == 0.0


def test_another_base_is_asked_about(tmp_path, base):
    _, after = reports(tmp_path, base, unrelated=base.flip(0) * 3)
    [finding] = after.findings
    assert (finding.kind, after.agents["unrelated"].verdict) == ("dense", "training")
    assert "Is this the base" in finding.text


def test_tied_heads_are_accounted_for(tmp_path):
    rng = torch.Generator().manual_seed(5)
    matrix = torch.randn(9, 4, generator=rng).bfloat16()
    both = {EMBEDDING: matrix, HEAD: matrix.clone()}
    write_folder(tmp_path / "base", both, tied=True)
    write_folder(tmp_path / "one", {EMBEDDING: matrix * 2}, tied=True)
    write_folder(tmp_path / "silent", {EMBEDDING: matrix * 3, HEAD: matrix * 3}, tied=None)
    fit = load(tmp_path / "base", {n: tmp_path / n for n in ("one", "silent")})
    report = storage_report(fit)
    assert report.counted_once == {HEAD: EMBEDDING}
    assert {n: (h.stored, h.is_tied, h.config) for n, h in report.heads.items()} == {
        "base": ("both", True, True),
        "one": ("embedding", True, True),
        "silent": ("both", True, None),
    }
    [finding] = [f for f in report.findings if f.kind != "tokenizer"]
    assert (finding.kind, finding.level) == ("tied-head", "note")
    assert "counted once" in finding.text


def test_an_analysis_alone_gives_verdicts_and_keeps_its_warnings(tmp_path, base):
    agents = {
        "noisy": base.float() + noise(base, 1),
        "tool": trained(base, 2),
        "code": trained(base, 3),
    }
    for name, tensor in {"base": base, **agents}.items():
        write_folder(tmp_path / name, {"model.w": tensor})
    config = tmp_path / "noisy" / "config.json"
    config.write_text(config.read_text().replace("qwen2", "llama"))
    fit = load(tmp_path / "base", {name: tmp_path / name for name in agents})
    analysis = analyze_report(fit)
    alone = storage_report(analysis=analysis)
    assert alone.agents["noisy"].verdict == "storage"
    assert [f.kind for f in alone.findings] == ["sources", "storage"]
    assert set(alone.warnings) == set(storage_report(fit, analysis).warnings)
    json.dumps(alone.to_dict(), allow_nan=False)


def test_an_analysis_of_other_files_is_refused(tmp_path):
    zoo, other = (make_zoo(tmp_path / n, 2, seed=i) for i, n in enumerate("ab"))
    analysis = analyze_report(zoo.load())
    with pytest.raises(AnalysisError, match="base, agent0, agent1"):
        storage_report(other.load(), analysis)


def test_an_adapter_never_applied_is_told_for_any_shards(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(8).bfloat16(), "v": torch.ones(8).bfloat16()}
    base = write_folder(tmp_path / "base", tensors)
    agent = write_folder(tmp_path / "agent", tensors, shards=2)
    other = write_folder(tmp_path / "other", {n: t + 1 for n, t in tensors.items()})
    for folder in (agent, other):
        (folder / "lora_adapter").mkdir()
        (folder / "lora_adapter" / "adapter_config.json").write_text("{}")
    report = load(base, {"coder": agent})
    assert report.warnings == ()
    hint, equal = analyze_report(report).warnings
    assert "nothing was changed" in equal
    assert f'Agent "coder": a LoRA adapter is beside it, in {agent / "lora_adapter"}.' in hint
    assert "it was never applied: give that folder as the agent" in hint
    trained = analyze_report(load(base, {"coder": other}))
    assert "never applied" not in "".join(trained.warnings)
