"""Checkpoints as files: what is read of them, whether they fit, how one is written and recorded.

    read     what files hold: headers, tensors, small files, hashes; here or at a URL
    virtual  tensors that no file holds: adapters, deltas, distributed, experts, quantized
    opening  which files make up a checkpoint
    hub      the Hugging Face Hub: models opened and pushed, sets of them
    fit      whether agents fit a base, tensor by tensor
    write    a merged checkpoint: whole or not at all, here or at a URL
    record   the recipe, and what is kept of a merge beside its weights

Nothing here computes a merge, and nothing needs torch, transformers or gradio.
"""
