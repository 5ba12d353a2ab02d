"""Rules of the optimizers of `[trainer]` and `[critic]`: settings that theirs, or their schedule, ignores."""

from collections.abc import Iterator

from rlrun.specs.job import Spec
from rlrun.specs.optimizer import OptimizerSpec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import Rule, given, no_effect

UNUSED = {"adamw": ("momentum",), "sgd": ("betas", "eps"), "muon": ()}
"""Settings that an optimizer does not have."""


def optimizer_sections(spec: Spec) -> tuple[tuple[str, OptimizerSpec], ...]:
    """The sections that describe an optimizer, by name."""
    return ("trainer", spec.trainer), ("critic", spec.critic)


def settings_of_other_optimizers(spec: Spec) -> Iterator[Finding]:
    """A setting of an optimizer that was not chosen."""
    for name, section in optimizer_sections(spec):
        for setting in UNUSED[section.optimizer]:
            if given(section, setting):
                why = f"{section.optimizer} has no {setting}"
                others: tuple[KeyPath, ...] = ((name, "optimizer"),)
                yield no_effect((name, setting), why, "remove it, or choose another optimizer", others)


def settings_of_other_schedules(spec: Spec) -> Iterator[Finding]:
    """A constant learning rate ends where it is; only one schedule falls at the end alone."""
    for name, section in optimizer_sections(spec):
        others: tuple[KeyPath, ...] = ((name, "schedule"),)
        if given(section, "min_lr_ratio") and section.schedule == "constant":
            cure = 'remove it, or choose schedule = "cosine", "linear" or "wsd"'
            yield no_effect((name, "min_lr_ratio"), "the schedule is constant", cure, others)
        if given(section, "decay_steps") and section.schedule != "wsd":
            cure = 'remove it, or choose schedule = "wsd"'
            yield no_effect((name, "decay_steps"), f"the schedule is {section.schedule}", cure, others)


OPTIMIZER_RULES: tuple[Rule, ...] = (settings_of_other_optimizers, settings_of_other_schedules)
