"""Selects the model's tensors in a trainer's checkpoint, with their names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection

from ram_studio.checkpoints.read.describe import plural, printable, quoted, shown_list
from ram_studio.errors import CheckpointError, SettingsError

Keys = tuple[str, ...]
"""The keys that lead to a tensor in the saved dictionaries, its own name last."""

_OTHERS = ("optim", "lr_scheduler", "scheduler", "rng_state", "grad_scaler")
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, FSDP and activation checkpointing add."""


def choose_names(
    paths: Collection[Keys], key: str | None, at: str, nameless: Collection[Keys] = ()
) -> dict[Keys, str]:
    """Return the model's tensors, each with its name, without optimizers' states.

    Args:
        paths: the keys of all tensors.
        key: the keys that lead to the model, joined by dots; None if it is unique.
        at: starts messages.
        nameless: the keys of tensors in lists.

    Raises: SettingsError for several models without a key, or none at this key; CheckpointError
    when two tensors have one name, or one has none, or a LoRA adapter is among them.
    """
    models = _without_others(paths)
    models = [path for path in models if not path[-1].startswith(("optim.", "optimizer."))]
    if key is not None:
        wanted = tuple(key.split("."))
        _refuse_nameless(nameless, wanted, at)
        chosen = {path: path[len(wanted) :] for path in models if path[: len(wanted)] == wanted}
    else:
        common = _common([path[:-1] for path in models])
        tops = Counter(path[len(common)] for path in models if len(path) > len(common) + 1)
        if len(tops) > 1 and not any(len(path) == len(common) + 1 for path in models):
            shown = [".".join((*common, top)) for top in tops]
            if not _is_one_model(models, len(common)):
                raise SettingsError(
                    f"{at} holds several models ({shown_list(shown)}); choose one with "
                    f"--key {printable(shown[0])}."
                )
        _refuse_nameless(nameless, common, at)
        chosen = {path: path[len(common) :] for path in models}
    names = {path: _plain(".".join(rest)) for path, rest in chosen.items() if rest}
    if not names:
        what = "no tensor of a model" if key is None else f"nothing under the key {quoted(key)}"
        found = sorted({path[0] for path in paths})
        raise SettingsError(
            f"{at} holds {what}; it has {plural(len(paths), 'tensor')} under "
            f"{shown_list(found, show=quoted) or 'no key'}."
        )
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise CheckpointError(
            f"{at} holds {quoted(twice[0])} twice; choose one of its models with --key."
        )
    _refuse_adapter(names.values(), at)
    return names


def _without_others(paths: Collection[Keys]) -> list[Keys]:
    return [path for path in paths if not any(k.startswith(_OTHERS) for k in path[:-1])]


def _refuse_nameless(paths: Collection[Keys], model: Keys, at: str) -> None:
    """Refuse a model with a tensor in a list; model: the keys that lead to it."""
    for path in _without_others(paths):
        if path[: len(model)] == model:
            raise CheckpointError(
                f"{at}: a tensor of the model has no name ({quoted('.'.join(path))}: it is in a "
                "list). Save the model's state dict alone, and convert that."
            )


def _common(paths: list[Keys]) -> Keys:
    """Return the common first keys of all paths."""
    alike = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in alike)


def _is_one_model(paths: list[Keys], depth: int) -> bool:
    """Return whether top keys are modules of one model: then no names below them are equal."""
    rests = Counter(path[depth + 1 :] for path in paths)
    return max(rests.values()) == 1


def _plain(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _refuse_adapter(names: Collection[str], at: str) -> None:
    found = next((name for name in names if ".lora_A." in name or ".lora_embedding_A" in name), "")
    if found:
        raise CheckpointError(
            f"{at} holds a LoRA adapter and its base in one ({quoted(found)}). Give the folder of "
            "the adapter as the agent (verl: lora_adapter in the same folder); it needs no "
            "conversion."
        )
