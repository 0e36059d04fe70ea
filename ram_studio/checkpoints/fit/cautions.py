"""Findings to show the user before merging checkpoints that fit together.

Their sentences name the agent. Nothing here stops a merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ram_studio.algorithm.meters.storage import Finding, Kind
from ram_studio.checkpoints.fit.tokenizers import stop_token_findings, tokenizer_findings
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import printable, shown_list
from ram_studio.checkpoints.read.shard_files import ADAPTER_CONFIG
from ram_studio.checkpoints.read.tensors import MERGED_DTYPES
from ram_studio.checkpoints.virtual.adapters import rank_of

# Settings that change what the same weights compute. Sizes are listed although shapes were
# compared: heads of another size or number can have the same matrices.
CONFIG_KEYS = (
    *("model_type", "architectures", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_scaling", "partial_rotary_factor"),
    *("sliding_window", "use_sliding_window", "tie_word_embeddings"),
    "bos_token_id",
)


def cautions(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    """Return findings about checkpoints that fit: same files, config, dtypes, tokenizers."""
    found = _same_files(base, agents)
    if not base.config:
        found.append(
            Finding(
                "config",
                "The base has no config.json: the merged folder will not load in transformers "
                "until one is added.",
            )
        )
    if base.config.get("auto_map"):
        found.append(
            Finding(
                "config",
                "The base's config.json refers to its own Python files (auto_map), which are not "
                "copied; if you trust them, add them to the merged folder yourself.",
            )
        )
    for agent in agents:
        found += _config_differences(base, agent)
        found += _adapter(base, agent) or _dtype_differences(base, agent)
    return found + tokenizer_findings(base, agents) + stop_token_findings(base, agents)


def _about(
    agent: Checkpoint, kind: Kind, text: str, level: Literal["warn", "note"] = "warn"
) -> Finding:
    return Finding(kind, f"{agent.who}{text}", (agent.name,), level)


def _adapter(base: Checkpoint, agent: Checkpoint) -> list[Finding]:
    """Return a finding on an applied adapter and the cause of its sparsity; none for others."""
    # A tied head that the base does not store is the embedding: it is not counted twice.
    found = (rank_of(t) for name, t in agent.tensors.items() if name in base.tensors)
    made = [rank for rank in found if rank is not None]
    if not made:
        return []
    ranks = sorted(set(made))
    dtypes = " and ".join(sorted({t.dtype for t in base.tensors.values()} & set(MERGED_DTYPES)))
    rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    text = (
        f"a LoRA adapter of {rank} on {len(made)} of {len(base.tensors)} tensors, "
        "applied to the base in float32. Training moved nearly every element of those; where they "
        f"equal the base in {dtypes}, rounding, not training, made them equal."
    )
    return [_about(agent, "adapter", text, "note")]


def _same_files(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    found = []
    first: dict[str, str] = {}
    for agent in agents:
        if agent.fingerprint == base.fingerprint:
            text = "it holds the same files as the base, so it has nothing to merge."
            if beside := _adapter_beside(agent):
                text += (
                    f" Your adapter was never applied: it is in {printable(beside)}; give that "
                    "folder as the agent."
                )
            found.append(_about(agent, "equal-base", text))
        elif agent.fingerprint in first:
            other = first[agent.fingerprint]
            found.append(
                Finding(
                    "equal-agents",
                    f'Agents "{other}" and "{agent.name}" hold the same files; all their changes '
                    "count as shared.",
                    (other, agent.name),
                )
            )
        else:
            first[agent.fingerprint] = agent.name
            # Equal weights in other files are only found by a pass, which may drop this finding.
            if beside := _adapter_beside(agent):
                text = (
                    f"a LoRA adapter is beside it, in {printable(beside)}. If nothing was "
                    "changed here, it was never applied: give that folder as the agent."
                )
                found.append(_about(agent, "never-applied", text, "note"))
    return found


def _adapter_beside(agent: Checkpoint) -> Path | None:
    """Return the folder of an adapter in or beside a checkpoint's, as trainers leave it."""
    for folder in (agent.folder / "lora_adapter", agent.folder.parent / "lora_adapter"):
        if (folder / ADAPTER_CONFIG).is_file():
            return folder
    return None


def _comparable(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings that matter, rope settings under their older names.

    transformers 5 stores them in `rope_parameters`, 4 in `rope_theta` and `rope_scaling`.
    """
    merged = {**checkpoint.config, **checkpoint.text_config}
    rope = merged.get("rope_parameters")
    if isinstance(rope, dict):
        merged.setdefault("rope_theta", rope.get("rope_theta"))
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        merged.setdefault("rope_scaling", rest)
    scaling = merged.get("rope_scaling")
    if isinstance(scaling, dict):
        # "type" is the older spelling of "rope_type"; "default" means none at all.
        scaling = {"rope_type" if k == "type" else k: v for k, v in scaling.items()}
        scaling.pop("rope_theta", None)
        merged["rope_scaling"] = (
            None if scaling.get("rope_type", "default") == "default" else scaling
        )
    return {key: merged[key] for key in CONFIG_KEYS if merged.get(key) is not None}


def _config_differences(base: Checkpoint, agent: Checkpoint) -> list[Finding]:
    if not base.config or not agent.config:
        return []
    ours, theirs = _comparable(base), _comparable(agent)
    # A setting that only one config has may be the other's default: it is not reported.
    differing = [
        f"{key} is {printable(theirs[key], 60)}, in the base {printable(ours[key], 60)}"
        for key in CONFIG_KEYS
        if key in ours and key in theirs and ours[key] != theirs[key]
    ]
    if ("rope_scaling" in ours) != ("rope_scaling" in theirs):
        has, lacks = ("base", "agent") if "rope_scaling" in ours else ("agent", "base")
        differing.append(f"rope_scaling is set in the {has} and not in the {lacks}")
    if not differing:
        return []
    text = (
        f"its config differs from the base's: {shown_list(differing, limit=6)}. The base's is "
        "copied."
    )
    return [_about(agent, "config", text)]


def _dtype_differences(base: Checkpoint, agent: Checkpoint) -> list[Finding]:
    """Report merged tensors that are stored in another dtype than the base's (the storage trap)."""
    changed: dict[tuple[str, str], int] = {}
    for name, tensor in base.tensors.items():
        own = agent.tensors.get(name)
        if own is not None and own.dtype != tensor.dtype and tensor.dtype in MERGED_DTYPES:
            pair = (own.dtype, tensor.dtype)
            changed[pair] = changed.get(pair, 0) + 1
    return [
        _about(
            agent,
            "dtype",
            f"{count} of {len(base.tensors)} tensors are stored in {own}, in the base in {ours}; "
            "rounding alone can then look like training.",
        )
        for (own, ours), count in changed.items()
    ]
