"""Rules of the optimizers of `[trainer]` and `[critic]`: settings that an optimizer or schedule ignores."""

from collections.abc import Iterator

from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, is_given, no_effect
from rlrun.specs.sections.job import Spec

UNUSED = {"adamw": ("momentum",), "adamw_8bit": ("momentum",), "sgd": ("betas", "eps"), "muon": ()}
"""For each optimizer, the settings that it does not have."""


def settings_of_other_optimizers(spec: Spec) -> Iterator[Finding]:
    """Reports settings that the chosen optimizer does not have."""
    for name, section in spec.optimizers:
        for setting in UNUSED[section.optimizer]:
            if is_given(section, setting):
                why = f'optimizer = "{section.optimizer}" has no {setting}'
                related: tuple[KeyPath, ...] = ((name, "optimizer"),)
                yield no_effect((name, setting), why, "remove it, or choose another optimizer", related)


def settings_of_other_schedules(spec: Spec) -> Iterator[Finding]:
    """Reports settings that the chosen schedule of the learning rate does not read."""
    for name, section in spec.optimizers:
        related: tuple[KeyPath, ...] = ((name, "schedule"),)
        if is_given(section, "min_lr_ratio") and section.schedule == "constant":
            cure = 'remove it, or set schedule = "cosine", "linear" or "wsd"'
            yield no_effect((name, "min_lr_ratio"), 'schedule = "constant" never decays', cure, related)
        if is_given(section, "decay_steps") and section.schedule != "wsd":
            why = f'schedule = "{section.schedule}" does not read it'
            yield no_effect((name, "decay_steps"), why, 'remove it, or set schedule = "wsd"', related)


def two_warm_ups(spec: Spec) -> Iterator[Finding]:
    """Reports a warm-up that is given both as a number of steps and as a share."""
    for name, section in spec.optimizers:
        if section.warmup_ratio is not None and is_given(section, "warmup_steps"):
            message = f"and {name}.warmup_steps both give the length of the warm-up"
            related: tuple[KeyPath, ...] = ((name, "warmup_steps"),)
            path: KeyPath = (name, "warmup_ratio")
            yield Finding(path, message, "remove one of them", found=section.warmup_ratio, related=related)


OPTIMIZER_RULES: tuple[Rule, ...] = (
    settings_of_other_optimizers,
    settings_of_other_schedules,
    two_warm_ups,
)
