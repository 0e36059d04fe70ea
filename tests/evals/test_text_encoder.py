"""Tokenizers bring expressions that may never end: texts become tokens where they can be ended."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering import text_encoder
from ram_studio.evals.answering.load import load_tokenizer
from ram_studio.evals.answering.text_encoder import TextEncoder, TokenizerError, encoder_of
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites.unavailable import find_unavailable
from ram_studio.resources import asset_path

BASE = asset_path("independent", "base")
TEXT = "say fig plum .\n" * 20
ENDLESS = r"(?:[^\n]|[^\r]|[^\t]?){13}(?!.)(?=.)"
DEEP = r"(?:[^\n]|[^\r]|[^\t]?){24}(?!.)(?=.)"
SLOW = r"(?:[^\n]|[^\r]|[^\t]?){9}(?!.)(?=.)"

ASKS = text_encoder
pytestmark = pytest.mark.usefixtures("quick")


def own_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BASE / "tokenizer.json"))


def with_expression(pattern: str) -> Tokenizer:
    """Return the shipped tokenizer with an expression that splits texts."""
    tokenizer = own_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return tokenizer


def make_model(folder: Path, tokenizer: Tokenizer) -> Path:
    """Write a model whose tokenizer is read as it is stored: Qwen2's brings its own expressions."""
    shutil.copytree(BASE, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    own = {"max_position_embeddings": 8192, "model_type": "llama", "layer_types": None}
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **own}))
    return folder


def test_tokens_equal_those_of_transformers(quick):
    special = next(iter(own_tokenizer().get_added_tokens_decoder().values())).content
    texts = ["", TEXT, "Grüße 🎉 \x00", f"a{special}b", "x" * 5000]
    cut = own_tokenizer()
    cut.enable_truncation(3)
    cut.enable_padding(length=9)
    for n, backend in enumerate((own_tokenizer(), with_expression(r"\s+"), cut) * 2):
        own = PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=bool(n % 2))
        encode = encoder_of(own, BASE)
        process = quick._process
        for text in texts:
            for around in (True, False):
                found = encode(text, around)  # first: the library's own call resets a limit
                assert found == own.encode(text, add_special_tokens=around, verbose=False)
        assert process is None or quick._process is process


def test_more_tokenizers_than_are_kept_take_turns():
    made = []
    for n in range(6):
        tokenizer = own_tokenizer()
        tokenizer.normalizer = normalizers.Prepend("ab cde"[: n + 1])
        made.append((TextEncoder(tokenizer, BASE), tokenizer))
    for encoder, tokenizer in made * 2:
        assert encoder.encode(TEXT) == tokenizer.encode(TEXT).ids


@pytest.mark.parametrize(("pattern", "reason"), [(ENDLESS, "longer than 0.3 s"), (DEEP, "")])
def test_an_expression_without_end_is_ended_and_others_go_on(pattern, reason):
    healthy = TextEncoder(own_tokenizer(), BASE)
    expected = healthy.encode(TEXT)
    with pytest.raises(
        TokenizerError, match=f"The tokenizer of m fails: .*{reason}.*Copy the base"
    ):
        TextEncoder(with_expression(pattern), Path("m")).encode("a" * 400)
    assert healthy.encode(TEXT) == expected


def test_a_tokenizer_slow_with_every_text_is_ended():
    slow = TextEncoder(with_expression(SLOW), Path("m"))
    with pytest.raises(TokenizerError, match=r"of m fails: it takes 0.3 s more than is usual"):
        all(slow.encode("a" * 60) for _ in range(100))
    assert TextEncoder(own_tokenizer(), BASE).encode(TEXT)


def test_an_evaluation_ends_with_the_models_name(tmp_path):
    model = make_model(tmp_path / "stuck", with_expression(ENDLESS))
    with pytest.raises(EvaluationError, match=f"The tokenizer of {model} fails"):
        evaluate({"stuck": model}, "math", limit=1)
    # Nothing is known of such a model's room, and it is not asked for each suite.
    assert find_unavailable(model, ["math", "tool", "code"], 1000) == {}


def test_a_worker_ends_with_its_parent():
    """Also where the parent has no time to end it."""
    code = (
        "import os\n"
        "from ram_studio.evals.answering.text_encoder import WORKER as w\n"
        "said = w.ask({'key': '', 'text': '', 'special': True, 'splits': True})\n"
        "print(said, w._process.pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, pid = done.stdout.rsplit(maxsplit=1)
    assert said == "{'is_unknown': True}"
    for _ in range(100):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} still runs")


def test_a_decoder_with_an_expression_is_refused(tmp_path):
    tokenizer = own_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("(a+)+b"), "")])
    with pytest.raises(EvaluationError, match=r"decoder in .*tokenizer.json replaces by a regular"):
        load_tokenizer(make_model(tmp_path / "expression", tokenizer))
    tokenizer.decoder = decoders.Replace("_", " ")
    assert load_tokenizer(make_model(tmp_path / "text", tokenizer)) is not None
    assert json.loads((tmp_path / "text" / "tokenizer.json").read_text())["decoder"]
