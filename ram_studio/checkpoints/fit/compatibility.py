"""Do a base and its agents fit together? Answered from headers, before any pass over the data.

The answer is a list of `MergeTensor`, one per tensor of the base in file order, which the engine
does not check again. Nothing is skipped or cropped silently: a tensor that is not merged exactly is
an error (see mismatches.py), or a warning in the report when the user allowed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from ram_studio.algorithm.meters.storage import Finding, texts
from ram_studio.checkpoints.fit.cautions import cautions
from ram_studio.checkpoints.fit.mismatches import Mismatch, incompatible, match_agent, unmergeable
from ram_studio.checkpoints.fit.names import map_names
from ram_studio.checkpoints.fit.tied import HeadStorage, follow_ties, resolve_tied
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import BASE_NAME, printable, quoted
from ram_studio.checkpoints.read.tensors import MERGED_DTYPES, TensorInfo
from ram_studio.checkpoints.virtual.adapters import apply_adapter
from ram_studio.checkpoints.virtual.deltas import overlay_delta
from ram_studio.checkpoints.virtual.expert_adapters import Packing, Packings, packing_for
from ram_studio.checkpoints.virtual.experts import in_layout_of
from ram_studio.checkpoints.virtual.quantized import decode_checkpoint, decoded_findings
from ram_studio.errors import CompatibilityError, SettingsError

MissingPolicy = Literal["error", "keep-base"]
ExtraPolicy = Literal["error", "ignore"]
RowsPolicy = Literal["exact", "common"]
NamesPolicy = Literal["exact", "mapped"]


class FitKeywords(TypedDict, total=False):
    """Policies for agents that do not fit, see ``check_compatibility``."""

    missing: MissingPolicy
    extra: ExtraPolicy
    rows: RowsPolicy
    names: NamesPolicy
    experts_packing: Packings


@dataclass(frozen=True)
class MergeTensor:
    """One tensor of the merged checkpoint and its inputs.

    Attributes:
        base: the base's tensor; the merged one has its name and shape.
        agents: one per agent, in the order given. The base's own replaces a missing one
            (its task vector is then zero); a tied head may come from the agent's embedding.
        tied_to: the embedding's name, for a tied head that the base stores a second time: it is
            merged like its embedding (seeds included, so that they stay equal), and left out of all
            counts. Else None.
    """

    base: TensorInfo
    agents: tuple[TensorInfo, ...]
    tied_to: str | None = None

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def dtype(self) -> str:
        return self.base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @cached_property
    def numel(self) -> int:
        return self.base.numel

    @property
    def kind(self) -> Literal["merge", "copy"]:
        """Integers and booleans are copied."""
        return "merge" if self.dtype in MERGED_DTYPES else "copy"

    @property
    def is_counted(self) -> bool:
        """Whether it enters densities and rho."""
        return self.tied_to is None

    @property
    def merged_as(self) -> str:
        """The name that seeds its random numbers: a tied head uses its embedding's."""
        return self.tied_to or self.name

    @cached_property
    def common_numel(self) -> tuple[int, ...]:
        """Per agent, the length of the flat prefix that it has.

        Beyond it the base is used. Less than numel only with rows "common".
        """
        return tuple(min(own.numel, self.numel) for own in self.agents)


@dataclass(frozen=True)
class CompatibilityReport:
    """A base and agents that fit together, with the plan of each merged tensor.

    Attributes:
        base, agents: the checkpoints.
        tensors: in the base's file order.
        findings: for the user; nothing in them stops a merge.
        heads: per checkpoint name, how head and embedding are stored; {} without any.
        policies: the requested policies for agents that do not fit.
    """

    base: Checkpoint
    agents: tuple[Checkpoint, ...]
    tensors: tuple[MergeTensor, ...]
    findings: tuple[Finding, ...]
    heads: dict[str, HeadStorage]
    policies: FitKeywords

    def __repr__(self) -> str:
        names = ", ".join(agent.name for agent in self.agents)
        size = f"{self.counted_elements:,} elements in {len(self.tensors)} tensors"
        notes = f"{len(self.warnings)} warnings" if self.warnings else "no warnings"
        return f"CompatibilityReport({names}: {size}, {notes})"

    @property
    def dtypes(self) -> dict[str, dict[str, int]]:
        """Per checkpoint name, {dtype: elements}."""
        return {c.name: c.dtypes for c in self.checkpoints}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of all warnings among the findings."""
        return texts(self.findings)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return (self.base, *self.agents)

    @property
    def merged(self) -> list[MergeTensor]:
        """The tensors of floating-point numbers, in the base's file order."""
        return [t for t in self.tensors if t.kind == "merge"]

    @property
    def counted(self) -> list[MergeTensor]:
        """Those that enter densities and rho: a tied matrix once."""
        return [t for t in self.merged if t.is_counted]

    @property
    def counted_elements(self) -> int:
        """Elements of the counted tensors."""
        return sum(t.numel for t in self.counted)

    @property
    def is_local(self) -> bool:
        """Whether all checkpoints are on this disk, so that a pass can start."""
        return all(checkpoint.is_local for checkpoint in self.checkpoints)

    def of_agents(self, names: Sequence[str], policies: FitKeywords) -> CompatibilityReport:
        """Return the report of some of the agents; for all of them, nothing is checked again.

        Raises: CompatibilityError where they do not under these policies.
        """
        if list(names) == [agent.name for agent in self.agents] and policies == self.policies:
            return self
        known = {agent.name: agent for agent in self.agents}
        packing = policies.get("experts_packing", "ask")
        if not isinstance(packing, str):
            own = {name: packing_for(packing, name) for name in names}
            policies = {**policies, "experts_packing": own}
        return check_compatibility(self.base, [known[name] for name in names], **policies)

    def to_dict(self) -> dict[str, Any]:
        """Return a summary for JSON: checkpoints, tensor and element counts, warnings."""
        return {
            "base": self._checkpoint_dict(self.base),
            "agents": {agent.name: self._checkpoint_dict(agent) for agent in self.agents},
            "tensors": len(self.tensors),
            "merged_tensors": sum(t.kind == "merge" for t in self.tensors),
            "copied_tensors": [t.name for t in self.tensors if t.kind == "copy"],
            "tied": {t.name: t.tied_to for t in self.tensors if t.tied_to is not None},
            "partial_rows": [
                t.name for t in self.tensors if any(n != t.numel for n in t.common_numel)
            ],
            "elements": self.counted_elements,
            "is_local": self.is_local,
            "warnings": list(self.warnings),
        }

    def _checkpoint_dict(self, checkpoint: Checkpoint) -> dict[str, Any]:
        architectures = checkpoint.config.get("architectures")
        return {
            "source": checkpoint.source,
            "revision": checkpoint.revision,
            "fingerprint": checkpoint.fingerprint,
            "nbytes": checkpoint.nbytes,
            "shards": len(checkpoint.shards),
            "tensors": len(checkpoint.tensors),
            "dtypes": checkpoint.dtypes,
            "architecture": architectures[0]
            if isinstance(architectures, list) and architectures
            else None,
        }


def check_compatibility(
    base: Checkpoint,
    agents: Sequence[Checkpoint],
    *,
    missing: MissingPolicy = "error",
    extra: ExtraPolicy = "error",
    rows: RowsPolicy = "exact",
    names: NamesPolicy = "exact",
    experts_packing: Packings = "ask",
) -> CompatibilityReport:
    """Return how base and agents are merged tensor by tensor, or raise with every mismatch.

    Reads headers and config files; tensor data only to compare integer tensors, and heads with
    embeddings where both are stored, block by block. Of checkpoints that are not downloaded
    those comparisons are left for later.

    Args:
        base: the base model.
        agents: at least one, in the order of all results.
        missing: an agent's missing tensor is an error, or counts as unchanged.
        extra: a tensor that only an agent has is an error, or is left out.
        rows: "common" merges the rows that embedding and head share when a vocabulary is padded.
        names: "mapped" renames tensors of agents that were trained as text models to the names of
            a base with other towers, see ``names``.
        experts_packing: order of the columns of adapters of experts, see ``expert_adapters``: one
            for all agents, or by agent.

    Raises: CompatibilityError when they do not fit. The message is one line with the first
    tensors and the number of all; every one is in the error's `__notes__`. SettingsError for a
    policy that does not exist.
    """
    policies = FitKeywords(
        missing=missing, extra=extra, rows=rows, names=names, experts_packing=experts_packing
    )
    _check_policies(base, agents, policies)
    base, agents, notes = _as_base_has_them(base, agents, policies)
    tied = resolve_tied(base, agents, ignore_extra=extra == "ignore")
    problems = [Mismatch("tied", text) for text in tied.problems]
    problems += unmergeable(base, base.tensors)
    notes += [Finding("tied-head", text) for text in tied.warnings]
    for agent, tensors in zip(agents, tied.agents, strict=True):
        found, texts = match_agent(base, agent, tensors, policies)
        problems += found
        notes += [Finding("sources", text, (agent.name,)) for text in texts]
    if problems:
        raise incompatible(problems)
    _refuse_without_floats(base)
    merged = tuple(
        MergeTensor(
            tensor,
            tuple(own.get(name, tensor) for own in tied.agents),
            tied_to=tied.copy_of.get(name),
        )
        for name, tensor in base.tensors.items()
    )
    return CompatibilityReport(
        base=base,
        agents=tuple(agents),
        tensors=merged,
        findings=(
            *notes,
            *decoded_findings(base, agents),
            *cautions(base, agents),
            *(_stored_twice(head, embedding) for head, embedding in tied.copy_of.items()),
        ),
        heads=tied.heads,
        policies=policies,
    )


def _stored_twice(head: str, embedding: str) -> Finding:
    return Finding(
        "tied-head",
        f"The base stores {quoted(head)} a second time ({quoted(embedding)} is the same matrix): "
        "it is merged in both places and counted once.",
        level="note",
    )


def _refuse_without_floats(base: Checkpoint) -> None:
    if not any(tensor.dtype in MERGED_DTYPES for tensor in base.tensors.values()):
        raise CompatibilityError(
            f"{base.at} has no tensor of floating-point numbers, so there is nothing to merge; "
            "give the whole model as the base."
        )


def _refuse_as_base(base: Checkpoint) -> None:
    if base.adapter is None and base.delta is None:
        return
    what, of = "LoRA adapter", "the agents were trained from"
    if base.adapter is None:
        what, of = "delta", "it was made from"
    raise CompatibilityError(f"{base.at} is a {what}; give the whole model that {of} as the base.")


def _as_base_has_them(
    base: Checkpoint, agents: Sequence[Checkpoint], policies: FitKeywords
) -> tuple[Checkpoint, list[Checkpoint], list[Finding]]:
    """Return base and agents as whole unquantized models, with the base's names and layout.

    The third value is notes on tensors that are read differently than stored.
    """
    base = decode_checkpoint(base)
    _refuse_as_base(base)
    made, notes = [], []
    for agent in agents:
        named, renaming = map_names(base, decode_checkpoint(agent), policies)
        packing = packing_for(policies["experts_packing"], agent.name)
        whole = _whole(named, base, packing)
        laid_out, layout = in_layout_of(base, whole)
        made.append(laid_out)
        notes += [note for note in (renaming, layout) if note is not None]
    return base, made, notes


def _whole(agent: Checkpoint, base: Checkpoint, packing: Packing) -> Checkpoint:
    """Return an adapter or a delta, applied to the base, as a whole model."""
    if agent.adapter is not None:
        return follow_ties(apply_adapter(agent, agent.adapter, base, packing), base)
    return agent if agent.delta is None else overlay_delta(agent, agent.delta, base)


def _check_policies(
    base: Checkpoint, agents: Sequence[Checkpoint], policies: Mapping[str, Any]
) -> None:
    for field, kind in get_type_hints(FitKeywords).items():
        known, requested = get_args(kind), {"": policies[field]}
        if field == "experts_packing":
            known = get_args(Packing)
            requested = policies[field] if isinstance(policies[field], Mapping) else requested
        for agent, value in requested.items():
            if value not in known:
                of, choices = f" of {printable(agent)}" * bool(agent), " or ".join(known)
                raise SettingsError(f"{field}{of} is {printable(value)!r}; expected {choices}.")
        if unknown := requested.keys() - {"", *(agent.name for agent in agents)}:
            raise SettingsError(
                f"{field}: no agent is named {printable(min(unknown))!r}; the agents are "
                f"{', '.join(agent.name for agent in agents)}."
            )
    if not agents:
        raise CompatibilityError("No agent was given; a merge needs a base and at least one agent.")
    twice = [name for name, n in Counter(c.name for c in (base, *agents)).items() if n > 1]
    if twice:
        reason = "reserved for the base model" if twice[0] == BASE_NAME else "given to two agents"
        raise CompatibilityError(
            f'The name "{printable(twice[0])}" is {reason}; give every agent a different name.'
        )
