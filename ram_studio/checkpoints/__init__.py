"""Checkpoints as files: what is read of them, whether they fit, how one is written and recorded.

    read    checkpoint, shard_files, header, json_files, links, content_hash, same_bytes, describe
    hub     open, inspect, transfer, errors
    fit     compatibility, mismatches, tied, cautions, tokenizers, storage_report
    write   writer, shard_plan, output_folder, shard_digest, sidecars
    record  recipe, strict_yaml, passport, card, licences, mergekit, sketch_file, merge_log

Nothing here computes with elements, and nothing needs torch, transformers or gradio.
"""
