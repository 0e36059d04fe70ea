"""A recipe as the teachers of multi-teacher on-policy distillation (MOPD), for two trainers.

The base is the student, every agent the teacher of its own prompts. The settings are those of
verl's `DistillationConfig` (overrides of `verl.trainer.main_ppo`) and NeMo-RL's
`OnPolicyDistillationConfig` (YAML), October 2026.
"""

from __future__ import annotations

import re
from typing import Literal

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.record.strict_yaml import dump_yaml
from ram_studio.errors import SettingsError

Trainer = Literal["verl", "nemo-rl"]

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+-]+")
"""Values that Hydra accepts without quotes."""
_OWNER_NAME = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)")


def export_mopd(recipe: Recipe, trainer: Trainer) -> tuple[str, list[str]]:
    """Return a trainer's settings with the recipe's agents as teachers, and notes for the user.

    Raises: SettingsError for an agent whose name the trainer reserves.
    """
    notes: list[str] = []
    student = _model(recipe.base, notes)
    teachers = {name: _model(source, notes) for name, source in recipe.agents.items()}
    text = (_verl if trainer == "verl" else _nemo_rl)(student, teachers, notes)
    if recipe.weights or recipe.filters:
        notes.append("A teacher has no weight and no filter; both are left out.")
    return text, notes


def _model(source: str, notes: list[str]) -> str:
    """Return a source in the trainers' form, without a revision, which they do not accept."""
    found = _OWNER_NAME.fullmatch(source)
    if found is None:
        return source
    notes.append(f"{source}: trainers take no revision; download {found[2]} and name its folder.")
    return found[1]


def _verl(student: str, teachers: dict[str, str], notes: list[str]) -> str:
    # Hydra reads a dot in a key as a level.
    keys = {name: re.sub(r"[^A-Za-z0-9_]", "_", name) for name in teachers}
    names = {key: name for name, key in keys.items()}
    if "teacher_model" in names:
        raise SettingsError(
            f"verl drops a teacher called teacher_model, as {names['teacher_model']} would be; "
            "give the agent another name."
        )
    if twice := [name for name, key in keys.items() if names[key] != name]:
        raise SettingsError(
            f"For verl {twice[0]} and {names[keys[twice[0]]]} are both called {keys[twice[0]]}; "
            "give one of the agents another name."
        )
    notes.append("Set each key to the data_source of the prompts that its teacher is for.")
    notes.append(
        "One GPU a teacher: replicas times their tensor parallel sizes must fill the pool."
    )
    lines = [
        f"actor_rollout_ref.model.path={_quoted(student)}",
        "distillation.enabled=True",
        f"distillation.n_gpus_per_node={len(teachers)}",
        "distillation.nnodes=1",
        "distillation.teacher_key=data_source",
    ]
    for name, model in teachers.items():
        entry = f"+distillation.teacher_models.{keys[name]}"
        lines += [
            f"{entry}.key={_quoted(name)}",
            f"{entry}.model_path={_quoted(model)}",
            f"{entry}.num_replicas=1",
            f"{entry}.inference.name=vllm",
            f"{entry}.inference.tensor_model_parallel_size=1",
        ]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _nemo_rl(student: str, teachers: dict[str, str], notes: list[str]) -> str:
    notes.append("Name each NeMo Gym agent as the teacher that its samples are for.")
    return dump_yaml(
        {
            "policy": {"model_name": student},
            "grpo": {"async_grpo": {"enabled": True}, "adv_estimator": {"name": "opd"}},
            "on_policy_distillation": {
                "enabled": True,
                "teacher_model_by_agent_name": teachers,
                "strict_agent_name_match": True,
                "non_colocated_teachers": {"enabled": True},
            },
        }
    )
