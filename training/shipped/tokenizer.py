"""The example's tokenizer: byte-level BPE with 512 entries, trained on the example corpus.

Names and goods must be single tokens (with their leading space): the memory domain is a lookup
between neighboring tokens. `train_tokenizer` checks that.
"""

import json
import random
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.load import quiet_transformers
from ram_studio.evals.suites.demo.item import WORDS
from training.shipped.corpus import MIXTURE, draw_document

VOCABULARY = 512
DOCUMENTS = 8000
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
EOS, PAD = "<|endoftext|>", "<|pad|>"
EOS_ID, PAD_ID = 0, 1


def train_tokenizer(folder: Path, *, seed: int = 0) -> Any:
    """Train the tokenizer, save it in `folder` in the transformers layout, and return it loaded.

    Raises: EvaluationError: some name or good is not a single token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(f"tokenizer/{seed}")
    kinds = list(MIXTURE)
    texts = [
        "".join(text for text, _ in draw_document(rng.choice(kinds), rng)) for _ in range(DOCUMENTS)
    ]

    tokenizer = Tokenizer(models.BPE())
    # Digits stay single tokens, so BPE merges never contain numbers.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    split = [word for word in WORDS if len(tokenizer.encode(f" {word}").ids) != 1]
    if split:
        raise EvaluationError(
            f"The trained tokenizer splits {split}; every name and good must be one token. "
            "Train on more documents or enlarge the vocabulary."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    # Written here: the library would add the path and options of the last load.
    settings = {
        "eos_token": EOS,
        "model_max_length": 256,
        "pad_token": PAD,
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    with quiet_transformers():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
