"""Checkpoints as files: reading, matching and writing them, and the records of a merge.

    reading   checkpoint, shard_files, header, json_files, links; hub (hub_transfer, hub_errors)
    matching  compatibility, tied, comparison, cautions, tokenizer_difference, storage
    writing   writer, shard_plan, output_folder, sidecars
    records   recipe, passport, content_hash, licences, sketch_file;
              model_card (card_markup, card_licence)
    wording   describe

Nothing here computes with elements, and nothing needs torch, transformers or gradio.
"""
