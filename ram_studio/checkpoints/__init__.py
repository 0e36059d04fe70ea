"""Checkpoints as files: what is read of them, whether they fit, how one is written and recorded.

    read    checkpoint, shard_files, header, json_files, content_hash, remote, same_bytes, describe
    hub     open, repository, ranges, urls, push, transfer, errors
    fit     compatibility, mismatches, tied, cautions, tokenizers, storage_report
    write   writer, shard_plan, shard_writer, output_folder, part_folder, part_url, sidecars
    record  recipe, strict_yaml, passport, card, licences, mergekit, sketch_file, merge_log

Nothing here computes with elements, and nothing needs torch, transformers or gradio.
"""
