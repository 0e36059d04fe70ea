"""Checkpoints as files: reading them, checking that they fit, writing and recording merges.

    read     contents of files: headers, tensors, small files, hashes; local or at a URL
    virtual  computed tensors: adapters, deltas, distributed, experts, quantized
    opening  which files make up a checkpoint
    hub      the Hugging Face Hub: models opened and pushed, sets of them
    fit      whether agents fit a base, tensor by tensor
    write    a merged checkpoint: complete or not at all, local or at a URL
    record   the recipe, and the records stored beside merged weights

Nothing here computes a merge, and nothing needs torch, transformers or gradio.
"""
