"""Licenses from model cards, and which of them asks most."""

from __future__ import annotations

import itertools

import pytest
from checkpoint_zoo import make, small_tensors

from ram_studio.checkpoints.record.licenses import RANKS, License, license_of, most_restrictive


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: apache-2.0\n---\nx", License("apache-2.0")),
        ('---\nlicense: "apache-2.0"\ntags: []\n---\n', License("apache-2.0")),
        ("---\nlicense: Apache-2.0\n---\n", License("apache-2.0")),
        ("\ufeff---\r\nlicense: mit\r\n---\r\n", License("mit")),
        (
            "---\nlicense: other\nlicense_name: qwen-research\nlicense_link: https://x/y\n---\n",
            License("other", "qwen-research", "https://x/y"),
        ),
        ("---\nlicense:\n- mit\n- cc-by-nc-4.0\ntags:\n- a\n---\n", License("cc-by-nc-4.0")),
        ("---\nlicense: [mit]\n---\n", License("mit")),
        # What else is in a card does not matter, valid or not.
        ("---\nmodel-index: {[\nlicense: mit\nx: *y\n---\n", License("mit")),
        ("---\ntags:\n  license: gpl-3.0\n---\n", License()),
        ("---\nlicense: mit\nno end", License()),
        ("license: mit\n---\n", License()),
        ("---\nlicense:\n---\n", License()),
        ("---\nlicense: {a: b}\n---\n", License()),
        ("---\nlicense: *alias\n---\n", License()),
        ("---\nlicense: " + "[" * 280 + "\n---\n", License()),
        ("---\nlicense: " + "x" * 700 + "\n---\n", License()),
        (b"---\nlicense: \xff\n---\n", License("\ufffd")),
        ("", License()),
        (None, License()),
    ],
)
def test_the_front_matter_of_a_card_is_read(tmp_path, card, expected):
    checkpoint = make(tmp_path, "a", small_tensors())
    if card is not None:
        data = card if isinstance(card, bytes) else card.encode()
        (checkpoint.folder / "README.md").write_bytes(data)
    assert license_of(checkpoint) == expected


NAMES = {
    "public-domain": "cc0-1.0",
    "permissive": "mit|apache-2.0|bsd-3-clause|cc-by-4.0|other:mit",
    "weak-copyleft": "mpl-2.0|lgpl-3.0",
    "copyleft": "gpl-3.0|agpl-3.0|cc-by-sa-4.0",
    "use-restricted": "openrail|creativeml-openrail-m|llama3.1|gemma"
    "|other:Llama 3.2 Community License",
    "non-commercial": "cc-by-nc-4.0|cc-by-nc-sa-4.0|other:qwen-research|other:Qwen Research"
    "|other:my-non-commercial-terms",
    "no-derivatives": "cc-by-nc-nd-4.0|cc-by-nd-4.0",
    "custom": "other|something-new-1.0|other:tongyi-qianwen-license-agreement",
    "unknown": "unknown|",
}


@pytest.mark.parametrize(
    ("rank", "id"), [(rank, id) for rank in NAMES for id in NAMES[rank].split("|")]
)
def test_every_license_has_a_rank(rank, id):
    id, _, name = id.partition(":")
    assert License(id or None, name or None).rank == rank


def test_the_order_is_total_and_what_is_not_stated_is_the_most_restrictive():
    ids = ("cc0-1.0", "mit", "mpl-2.0", "gpl-3.0", "llama3.2", "cc-by-nc-4.0", "cc-by-nd-4.0")
    one_of_each = [*map(License, ids), License("other", "terms-of-acme"), License()]
    assert [license.rank for license in one_of_each] == [rank for rank, _, _ in RANKS]
    for low, high in itertools.combinations(one_of_each, 2):
        assert most_restrictive([low, high]) == most_restrictive([high, low]) == high
    assert most_restrictive([]) == License()
    # Of equal ones the first is named.
    two = [License("apache-2.0"), License("mit"), License("cc0-1.0")]
    assert most_restrictive(two) == License("apache-2.0")
