"""Licenses from model cards, and what they are together."""

from __future__ import annotations

import pytest
from checkpoint_zoo import make, small_tensors

from ram_studio.checkpoints.fit.licenses import License, combine_licenses, license_of


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
        ("---\nlicense:\n- mit\n- gpl-3.0\ntags:\n- a\n---\n", License("other", "mit and gpl-3.0")),
        ("---\nlicense: [mit]\n---\n", License("mit")),
        # What else is in a card does not matter, valid or not.
        ("---\nmodel-index: {[\nlicense: mit\nx: *y\n---\n", License("mit")),
        ("---\ntags:\n  license: gpl-3.0\n---\n", License()),
        ("---\nlicense: mit\nno end", License()),
        ("license: mit\n---\n", License()),
        ("---\nlicense:\n---\n", License()),
        ("---\nlicense: {a: b}\n---\n", License()),
        ("---\nlicense: *alias\n---\n", License()),
        ("---\nlicense: !!bool x\n---\n", License()),
        ("---\nlicense: !!float ''\n---\n", License()),
        ("---\nlicense: !!timestamp x\n---\n", License()),
        ("---\nlicense: " + "1:" * 290 + "1.5\n---\n", License()),
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


MIT, APACHE, TERMS = License("mit"), License("apache-2.0"), License("other", "terms-of-acme")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([MIT], MIT),
        ([MIT, MIT], MIT),
        ([TERMS, TERMS], TERMS),
        ([MIT, TERMS, APACHE, MIT], License("other", "mit and terms-of-acme and apache-2.0")),
        ([MIT, License()], License()),
        ([MIT, License("unknown")], License()),
        ([], License()),
    ],
)
def test_licenses_that_differ_are_named_together(stated, expected):
    assert combine_licenses(stated) == expected
