"""Rules of `engines.adapter` and `teacher.adapter`: models that are adapters of another one."""

from collections.abc import Iterator

from rlrun.specs.derived.lora_sync import why_not_beside_policy
from rlrun.specs.derived.served_adapters import shares_policy, teacher_shares_policy
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, no_effect
from rlrun.specs.sections.engine import NamedEngineSpec
from rlrun.specs.sections.job import Spec

_LORA: KeyPath = ("trainer", "lora")
_SHARED_KEYS = ("name", "type", "adapter", "max_length")
"""The keys that have an effect for an adapter that the policy's engines serve."""
_PATHS = "lora-paths"
"""SGLang's argument for the adapters that a server loads at the start."""


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


ADAPTER_RULES: tuple[Rule, ...] = (engine_adapters, teacher_adapter)
