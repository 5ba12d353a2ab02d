"""The hooks of a spec, as the driver and the trainer's ranks call them.

    driver   on_removed, on_samples                filters ─▶ samples ─▶ sequences
    ranks    on_model, on_batch, before_update     micro-batch ─▶ loss ─▶ gradients ─▶ optimizer

Each of the two creates the hooks that have methods for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlrun.plugins.hook_checks import SamplesBefore, advantages_fault
from rlrun.plugins.protocols import Hook
from rlrun.plugins.registry import build, load
from rlrun.plugins.types import Group, LossInputs, PolicyPart
from rlrun.specs.sections.job import Spec

DRIVER = ("on_removed", "on_samples")
RANK = ("on_model", "on_batch", "before_update")


class HookError(ValueError):
    """A hook failed, or did what it must not do; the message names it."""


class Hooks:
    """The hooks of one process, in the order of the spec."""

    def __init__(self, hooks: Sequence[tuple[str, Hook]] = ()) -> None:
        """`hooks`: each with its place in the spec, for errors."""
        self._hooks = hooks

    def on_removed(self, groups: Sequence[Group]) -> None:
        """Shows the hooks the samples that were scored for a step and are not trained on."""
        self._show("on_removed", groups)

    def on_samples(self, groups: Sequence[Group]) -> None:
        """Lets the hooks see and mask the samples of a step."""
        self._show("on_samples", groups)

    def on_model(self, part: PolicyPart) -> None:
        """Shows the hooks the policy with its weights."""
        for place, call in self._with("on_model"):
            _call_for_effect(place, call, part)

    def on_batch(self, inputs: LossInputs) -> LossInputs:
        """Returns the inputs of a loss, with the advantages that the hooks give them."""
        for place, call in self._with("on_batch"):
            advantages = _call(place, call, inputs)
            if advantages is not None:
                _refuse(place, advantages_fault(advantages, inputs))
                inputs = replace(inputs, advantages=advantages.detach().to(inputs.advantages))
        return inputs

    @property
    def see_gradients(self) -> bool:
        """Whether a hook sees gradients."""
        return bool(self._with("before_update"))

    def before_update(self, part: PolicyPart) -> None:
        """Lets the hooks see and change the gradients of a step."""
        for place, call in self._with("before_update"):
            _call_for_effect(place, call, part)

    def _show(self, method: str, groups: Sequence[Group]) -> None:
        """Calls a method with samples. Raises HookError where it changes what it must not."""
        for place, call in self._with(method):
            before = SamplesBefore(groups)
            _call_for_effect(place, call, groups)
            _refuse(place, before.fault())

    def _with(self, method: str) -> list[tuple[str, Callable[..., Any]]]:
        """Returns the hooks' methods of this name, each with its place for messages."""
        return [
            (f"{place}: {method}", getattr(hook, method))
            for place, hook in self._hooks
            if hasattr(hook, method)
        ]


def hooks_of(spec: Spec, methods: Sequence[str]) -> Hooks:
    """Creates the hooks of a spec that have one of the methods."""
    return Hooks(
        [
            (f'hooks.{number} ("{section.type}")', build("hooks", section.type, section.params))
            for number, section in enumerate(spec.hooks)
            if any(hasattr(load("hooks", section.type), method) for method in methods)
        ]
    )


def _call(place: str, call: Callable[..., Any], argument: Any) -> Any:
    try:
        return call(argument)
    except Exception as error:
        raise HookError(f"{place} failed: {type(error).__name__}: {error}") from error


def _call_for_effect(place: str, call: Callable[..., Any], argument: Any) -> None:
    """Calls a method whose result nobody would use, and refuses one: its author expects something of it."""
    if (result := _call(place, call, argument)) is not None:
        kind = type(result).__name__
        _refuse(place, f"it returned {kind}, which has no effect: change its argument, return None")


def _refuse(place: str, fault: str | None) -> None:
    if fault is not None:
        raise HookError(f"{place}: {fault}")
