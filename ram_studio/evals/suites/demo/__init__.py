"""The four domains of the example suite, one module each.

A domain module owns `draw(rng, hard)`, which makes one `Item`, and `is_correct(item, text)`, the
strict 0/1 verifier. It knows nothing about models, files or how a corpus may get an answer wrong.
"""
