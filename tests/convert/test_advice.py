"""What messages say to do with other formats is done, and what it writes is opened."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from trainers import WAYS

from ram_studio.checkpoints.opening import open_checkpoint, open_folder, why_no_model
from ram_studio.engine.delta import make_delta
from ram_studio.errors import CheckpointError, SettingsError
from ram_studio.evals.sandbox import is_sealed
from ram_studio.resources import asset_path


def advised(folder: Path) -> str:
    """Return the command that the refusal of a folder ends with."""
    with pytest.raises(CheckpointError) as refused:
        open_folder(folder, name="a")
    found = re.search(r"(ram-studio|python) .*", str(refused.value))
    assert found, refused.value
    return found[0]


@pytest.fixture
def follow(cli, tmp_path, monkeypatch) -> Callable[[str], None]:
    """Run a command of a message in the test's folder, with this interpreter."""

    def run(command: str) -> None:
        program, *arguments = shlex.split(command)
        monkeypatch.chdir(tmp_path)
        if program == "ram-studio":
            code, _, error = cli(*arguments)
        else:
            process = [sys.executable, *arguments]
            done = subprocess.run(process, capture_output=True, text=True, check=False)
            code, error = done.returncode, done.stderr
        assert code == 0, error[-2000:]

    return run


@pytest.mark.parametrize("file", ["pytorch_model.bin", "'); os.abort(); ('$(exit 3)\".gguf"])
def test_no_name_of_a_file_becomes_part_of_a_command(tmp_path, file):
    """A file's name could end the program that is advised, and a long path was cut."""
    folder = tmp_path / "it's; $(exit 4)" / ("long " * 40).strip()
    folder.mkdir(parents=True)
    (folder / file).touch()
    words = shlex.split(advised(folder))
    if file.endswith(".bin"):
        assert words == ["ram-studio", "convert", str(folder), "OUT"]
        return
    assert words[:2] == ["python", "-c"]
    assert len(words) == 3
    texts = [n.value for n in ast.walk(ast.parse(words[2])) if isinstance(n, ast.Constant)]
    assert {str(folder), file} <= set(texts)


@pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")
@pytest.mark.parametrize("way", ["verl", "verl, one level up", "DCP", "pickle", "accelerate"])
def test_the_command_that_a_message_names_converts(saved, follow, tmp_path, way):
    follow(advised(saved / WAYS[way]))
    whole = load_file(saved / "whole.safetensors")
    assert open_folder(tmp_path / "OUT", name="a").tensors.keys() == whole.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_in_a_pickle_is_written_by_peft(follow, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 16}
    config = Qwen2Config(**sizes, num_hidden_layers=1, num_key_value_heads=2)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "base")
    base = Qwen2ForCausalLM.from_pretrained(tmp_path / "base")
    adapter = tmp_path / "adapter"
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(adapter)
    stored = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(stored, adapter / "adapter_model.bin")
    follow(advised(adapter))
    assert open_folder(tmp_path / "OUT", name="a").tensors.keys() == stored.keys()


@pytest.mark.slow
def test_gguf_is_written_as_safetensors(follow, tmp_path):
    gguf = pytest.importorskip("gguf", reason="make test-formats installs it")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    for set_value, value in (
        *((writer.add_context_length, 64), (writer.add_embedding_length, 64)),
        *((writer.add_block_count, 1), (writer.add_feed_forward_length, 64)),
        *((writer.add_head_count, 2), (writer.add_head_count_kv, 2), (writer.add_vocab_size, 32)),
        *((writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_dimension_count, 32)),
        *((writer.add_tokenizer_model, "llama"), (writer.add_token_scores, [0.0] * 32)),
        *((writer.add_token_list, [b"<%d>" % n for n in range(32)]),),
        (writer.add_token_types, [1] * 32),
    ):
        set_value(value)
    kinds = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {f"blk.0.{kind}.weight": (64, 64) for kind in kinds}
    shapes |= {"blk.0.attn_norm.weight": (64,), "blk.0.ffn_norm.weight": (64,)}
    shapes |= {"token_embd.weight": (32, 64), "output_norm.weight": (64,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, torch.randn(shape).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    follow(advised(tmp_path))
    opened = open_folder(tmp_path / "OUT", name="a")
    assert "model.embed_tokens.weight" in opened.tensors
    assert "quantization_config" not in opened.config


DEEPSPEED = """
import os, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK="0", WORLD_SIZE="1")
out = Path(sys.argv[1])
store = f"file://{out}.store"
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it compiles one for minutes
model = torch.nn.Sequential(torch.nn.Linear(6, 7, bias=False), torch.nn.Linear(7, 3))
config = {"train_batch_size": 1, "zero_optimization": {"stage": 2}}
config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
engine.backward(engine(torch.ones(2, 6)).sum())
engine.step()
engine.save_checkpoint(str(out), tag="global_step1")
save_file(dict(model.state_dict()), out.with_suffix(".safetensors"))
sys.stdout.flush()
os._exit(0)  # its threads would wait
"""


@pytest.mark.slow
def test_deepspeeds_own_script_writes_what_is_read(follow, tmp_path):
    pytest.importorskip("deepspeed", reason="make test-formats installs it")
    follow(shlex.join(["python", "-c", DEEPSPEED, str(tmp_path / "saved")]))
    follow(advised(tmp_path / "saved"))
    whole = load_file(tmp_path / "saved.safetensors")
    written = load_file(tmp_path / "OUT" / "model.safetensors")
    assert written.keys() == whole.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in whole.items())


def test_the_index_of_pickles_is_told_what_to_do(follow, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "pytorch_model.bin"}}')
    torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="remove the index, then ram-studio convert FOLDER"):
        open_folder(folder, name="a")
    index.unlink()
    follow(advised(folder))
    assert load_file(tmp_path / "OUT" / "model.safetensors").keys() == {"w"}


def test_the_command_for_an_agent_of_another_dtype_makes_a_delta(follow, tmp_path):
    stored = {"model.embed_tokens.weight": torch.ones(90, 40, dtype=torch.bfloat16)}
    trained = {name: tensor.float() for name, tensor in stored.items()}
    trained["model.embed_tokens.weight"][3] = 2.5
    for name, tensors in (("base", stored), ("agent", trained)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors", {"format": "pt"})
    base, agent, out = (str(tmp_path / name) for name in ("base", "agent", "out"))
    with pytest.raises(SettingsError, match="is F32 in the agent and BF16 in the base") as refusal:
        make_delta(base, agent, tmp_path / "a.safetensors")
    command = re.search(r"\((ram-studio .*?)\)", str(refusal.value))[1]
    for name, place in (("BASE", base), ("FILE", agent), ("DIR", out)):
        command = command.replace(name, place)
    follow(command)
    assert make_delta(base, out, tmp_path / "a.safetensors").changed == 40


def write_adapter(folder: Path, base: Path) -> Path:
    """Write a LoRA adapter of rank 2 for one matrix of a base."""
    matrix = next(n for n in load_file(base / "model.safetensors") if "q_proj.weight" in n)
    rows, columns = load_file(base / "model.safetensors")[matrix].shape
    name = f"base_model.model.{matrix.removesuffix('.weight')}.lora_"
    factors = {f"{name}A.weight": torch.ones(2, columns), f"{name}B.weight": torch.ones(rows, 2)}
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    return folder


def write_parts(folder: Path, base: Path) -> Path:
    """Write a checkpoint as torch's writer of distributed safetensors does."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(load_file(base / "model.safetensors"), storage_writer=writer)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_advice_makes_a_model_of_what_cannot_answer_alone(follow, tmp_path):
    base, agent = asset_path("independent", "base"), asset_path("independent", "coding")
    delta = make_delta(base, agent, tmp_path / "coding.safetensors")
    made = [write_adapter(tmp_path / "adapter", base), tmp_path / "coding.safetensors"]
    made.append(write_parts(tmp_path / "parts", base))
    assert delta
    for number, source in enumerate(made):
        reason = why_no_model(open_checkpoint(source, name="a"))
        command = re.search(r"\((ram-studio .*?)\)", str(reason))[1]
        out = str(tmp_path / f"out-{number}")
        for name, place in (("BASE", str(base)), ("FILE", str(source)), ("DIR", out)):
            command = command.replace(name, place)
        follow(command)
        assert why_no_model(open_checkpoint(out, name="a")) is None
