"""Rules of adapters: `[trainer.lora]`, `model.adapter`, and models that are adapters of another one."""

import json
from collections.abc import Iterator
from pathlib import Path

from rlrun.models.adapters import EXPERT_TARGETS, TARGETS
from rlrun.models.json_files import read_json
from rlrun.specs.derived.lora_sync import (
    server_room,
    small_rooms,
    why_merged,
    why_not_beside_policy,
    why_not_served,
)
from rlrun.specs.derived.served_adapters import shares_policy, teacher_shares_policy
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.rules.shared_rules import Rule, is_given, no_effect
from rlrun.specs.sections.engine import NamedEngineSpec
from rlrun.specs.sections.job import Spec

LORA: KeyPath = ("trainer", "lora")
ADAPTER: KeyPath = ("model", "adapter")
_TYPE: KeyPath = ("engine", "type")
_SET_BY_LORA = ("enable-lora", "max-lora-rank", "lora-target-modules")
"""Arguments of a server that follow from [trainer.lora] if it is sent adapters."""
_LORA: KeyPath = ("trainer", "lora")
_SHARED_KEYS = ("name", "type", "adapter", "max_length")
"""The keys that have an effect for an adapter that the policy's engines serve."""
_PATHS = "lora-paths"
"""SGLang's argument for the adapters that a server loads at the start."""


def dropout(spec: Spec) -> Iterator[Finding]:
    """Adapters have no dropout."""
    if spec.trainer.lora is not None and (found := spec.trainer.lora.dropout):
        message = (
            f"must be 0, found {found:g}: each pass would drop other inputs, so that the ratio of new to old "
            "log-probs would be noise"
        )
        cure = "remove it; lower rank or alpha against overfitting"
        yield Finding((*LORA, "dropout"), message, cure, found=found)


def targets(spec: Spec) -> Iterator[Finding]:
    """Targets name matrices that can have an adapter in some model."""
    if spec.trainer.lora is None:
        return
    for number, target in enumerate(spec.trainer.lora.targets or ()):
        if target not in TARGETS:
            message = (
                f"{target} cannot have an adapter: the matrices of attention, dense feed-forwards and "
                "experts can; routers, embedding and head cannot"
            )
            meant = nearest(target, TARGETS)
            guess = f"did you mean {meant}? " if meant else ""
            cure = f"{guess}choose among {', '.join(TARGETS)}"
            yield Finding((*LORA, "targets", number), message, cure, meant, found=target)


def starting_adapter(spec: Spec) -> Iterator[Finding]:
    """`model.adapter` is trained further, by a `[trainer.lora]` that describes it."""
    if spec.model.adapter is None:
        return
    if spec.trainer.lora is None:
        message = "needs [trainer.lora] with the rank, alpha and targets of the adapter"
        cure = "add it, or merge the adapter first: rlrun convert hf-to-hf SRC DST --lora ADAPTER"
        yield Finding(ADAPTER, message, cure, at_value=False)
        return
    file = Path(spec.model.adapter) / "adapter_config.json"
    try:
        config = read_json(file)
        stored = {
            "rank": config["r"],
            "alpha": config["lora_alpha"],
            "rslora": config.get("use_rslora", False),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"{file} cannot be read as an adapter's settings ({reason})"
        yield Finding(ADAPTER, message, "give a folder that peft or rlrun wrote")
        return
    for name, value in stored.items():
        found = getattr(spec.trainer.lora, name)
        if found != value:
            is_written = is_given(spec.trainer.lora, name)
            path = (*LORA, name) if is_written else ADAPTER
            message = f"was trained with {name} = {_shown(value)}, and trainer.lora.{name} is {_shown(found)}"
            if is_written:
                message = (
                    f"is {_shown(found)}, and the adapter in model.adapter was trained with {_shown(value)}"
                )
            yield Finding(path, message, f"set trainer.lora.{name} = {_shown(value)}", related=(ADAPTER,))


def served_targets(spec: Spec) -> Iterator[Finding]:
    """SGLang can serve adapters of the chosen matrices."""
    if (
        spec.trainer.lora is None
        or spec.engine.given("lora_sync") != "adapters"
        or spec.engine.type != "sglang"
    ):
        return
    targets = frozenset(spec.trainer.lora.targets or ()).difference(EXPERT_TARGETS)  # a row of the table
    if (reason := why_not_served(targets, None)) is not None:
        key: KeyPath = ("engine", "lora_sync")
        yield Finding(key, reason, 'use "merged", or remove it', found="adapters", related=(LORA, _TYPE))


def changed_adapters(spec: Spec) -> Iterator[Finding]:
    """Adapters alone are sent whole."""
    alone = (
        spec.trainer.lora is not None
        and spec.engine.given("lora_sync") != "merged"
        and why_merged(spec) is None
    )
    if alone and spec.engine.weight_delta != "off":
        cure = 'remove it, or set engine.lora_sync = "merged"'
        yield no_effect(
            ("engine", "weight_delta"), "every version of the adapters is sent whole", cure, (LORA,)
        )


def adapter_arguments(spec: Spec) -> Iterator[Finding]:
    """Servers have room for the adapters of all versions that are used at a time."""
    if (
        spec.engine.type != "sglang"
        or spec.trainer.lora is None
        or spec.engine.given("lora_sync") == "merged"
    ):
        return
    if why_merged(spec) is not None:
        return
    room, related = server_room(spec), (LORA, ("engine", "lora_sync"), ("rollout", "max_staleness"))
    for name, value in small_rooms(spec):
        message = (
            f"is {value}, and {room} adapters are used at a time: the version that is being loaded, the one "
            "before it, those of running samples (rollout.max_staleness more in an asynchronous rollout), "
            "and those of [[engines]]"
        )
        path = ("engine", "sglang", name)
        yield Finding(path, message, f"remove it, or set at least {room}", at_value=False, related=related)
    for name in spec.engine.sglang:
        if flag_name(name) in _SET_BY_LORA:
            why = "rlrun sets it, by [trainer.lora]"
            yield no_effect(("engine", "sglang", name), why, "remove it", related)


def _shown(value: object) -> str:
    """Returns a value as TOML shows it; whole numbers without a fraction."""
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def engine_adapters(spec: Spec) -> Iterator[Finding]:
    """An adapter of `[[engines]]` has engines that can serve it, and keys that have an effect."""
    for number, section in enumerate(spec.engines):
        if section.adapter is None or section.type == "external":
            continue
        path: KeyPath = ("engines", number)
        if shares_policy(section):
            yield from _beside_policy(spec, section, path)
        elif name := next((name for name in section.sglang if flag_name(name) == _PATHS), None):
            related = ((*path, "adapter"),)
            yield no_effect((*path, "sglang", name), "rlrun sets it, by `adapter`", "remove it", related)


def _beside_policy(spec: Spec, section: NamedEngineSpec, path: KeyPath) -> Iterator[Finding]:
    """Reports why the policy's engines cannot serve an adapter, or the keys that they ignore."""
    related: tuple[KeyPath, ...] = (
        *(("engine", key) for key in ("type", "lora_sync", "sleep", "weight_sync", "router", "model")),
        _LORA,
        ("cluster",),
    )
    if (reason := why_not_beside_policy(spec)) is not None:
        message = f"has no engines: {reason}"
        cure = f'add `path = "{spec.model.path}"`, so that engines of its own serve the model with it'
        yield Finding((*path, "adapter"), message, cure, at_value=False, related=related)
        return
    if section.type != spec.engine.type:
        why = "the policy's engines serve this adapter"
        yield no_effect((*path, "type"), why, "remove it, or add `path`", (*related, (*path, "adapter")))
    for key in section.model_fields_set - set(_SHARED_KEYS):
        why = "the policy's engines serve this adapter, as [engine] sets them up"
        yield no_effect((*path, key), why, "remove it, or add `path`", ((*path, "adapter"),))
    if name := next((name for name in spec.engine.sglang if flag_name(name) == _PATHS), None):
        why = "rlrun sets it, by [[engines]]"
        yield no_effect(("engine", "sglang", name), why, "remove it", ((*path, "adapter"),))


def teacher_adapter(spec: Spec) -> Iterator[Finding]:
    """The teacher's adapter belongs to a model that the trainer's ranks have."""
    if teacher_shares_policy(spec) and spec.trainer.lora is None:
        message = "needs [trainer.lora] or teacher.path: it belongs to the policy's model before training"
        cure = f'add `path = "{spec.model.path}"` under [teacher]'
        related: tuple[KeyPath, ...] = (_LORA, ("teacher", "path"))
        yield Finding(("teacher", "adapter"), message, cure, at_value=False, related=related)


LORA_RULES: tuple[Rule, ...] = (
    dropout,
    targets,
    starting_adapter,
    served_targets,
    changed_adapters,
    adapter_arguments,
    engine_adapters,
    teacher_adapter,
)
