"""Rules of `[reference]`, `[teacher]` and `[critic]`: which ones an algorithm needs, and how they are run."""

from collections.abc import Iterator

from rlrun.specs.derived.served_adapters import teacher_shares_policy
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import is_given, no_effect
from rlrun.specs.sections.companions import companion_layout
from rlrun.specs.sections.job import Spec


def unused_companions(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Reports sections about models that the algorithm does not use."""
    for name, needed in (
        ("reference", needs.reference),
        ("teacher", needs.teacher),
        ("critic", needs.critic),
    ):
        if is_given(spec, name) and not needed:
            why = f"{spec.algorithm.type} does not use a {name} with these settings"
            yield no_effect((name,), why, f"remove [{name}]", (("algorithm",),))


def teacher(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Distillation needs a teacher, which either the trainer loads or engines serve."""
    if needs.teacher and spec.teacher is None:
        message = f"{spec.algorithm.type} learns from a teacher, and the spec has none"
        yield Finding(("teacher",), message, 'add a table [teacher] with `path = "…"`', at_value=False)
    if spec.teacher is None or teacher_shares_policy(spec):
        return
    if (spec.teacher.path is None) == (spec.teacher.engine is None):
        problem = "needs path or engine" if spec.teacher.path is None else "has both path and engine"
        message = f"{problem}: either the trainer loads the teacher (path), or [[engines]] serve it (engine)"
        cure = "add one of the two" if spec.teacher.path is None else "remove one of the two"
        keys: tuple[KeyPath, ...] = (("teacher", "path"), ("teacher", "engine"))
        yield Finding(("teacher",), message, cure, at_value=False, related=keys)


def served_companions(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Reports settings that engines which serve a teacher or a reference do not support."""
    for name, section, trainer_keys in (
        ("teacher", spec.teacher, ("revision", "parallel")),
        ("reference", spec.reference, ("update_interval",)),
    ):
        if section is None or section.engine is None:
            continue
        related: tuple[KeyPath, ...] = ((name, "engine"),)
        for key in trainer_keys:
            if is_given(section, key):
                why = f"engines serve the {name}, and the trainer does not load it"
                yield no_effect((name, key), why, f"remove it, or remove {name}.engine", related)
        if (temperature := spec.rollout.temperature) != 1.0:
            message = f"must be 1 where engines serve the {name}, found {temperature:g}"
            cure = f"set 1, or let the trainer load the {name} instead of engines"
            yield Finding(("rollout", "temperature"), message, cure, found=temperature, related=related)


def teacher_revision(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A revision only applies to a model of the hub."""
    path = spec.teacher.path if spec.teacher else None
    if spec.teacher is not None and spec.teacher.revision is not None and path and path.startswith("/"):
        why = f"{path} is a folder, not an id on the Hugging Face hub"
        yield no_effect(("teacher", "revision"), why, "remove it", (("teacher", "path"),))


def layouts(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The layout of a teacher or critic uses all of the trainer's ranks."""
    ranks = spec.trainer.parallel.world_size
    for name, section in (("teacher", spec.teacher), ("critic", spec.critic)):
        if section is None or section.parallel is None or not getattr(needs, name):
            continue
        companion_ranks = companion_layout(section.parallel, ranks).world_size
        if companion_ranks != ranks:
            path: KeyPath = (name, "parallel")
            message = (
                f"must use all trainer ranks ({ranks}), found fsdp · replicate · tensor = {companion_ranks}"
            )
            cure = f"change it, or remove it to shard the {name} over all ranks"
            yield Finding(path, message, cure, related=(("trainer", "parallel"),))


def critic_only_steps(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The policy is trained in at least one step."""
    only_steps, steps = spec.critic.only_steps, spec.trainer.steps
    trains = spec.debug.mode != "rollout"
    if trains and needs.critic and steps is not None and only_steps >= steps:
        message = (
            f"must be less than trainer.steps = {steps}, found {only_steps}: the policy would never be "
            "trained"
        )
        cure = f"set at most {steps - 1}, or raise trainer.steps"
        related: tuple[KeyPath, ...] = (("trainer", "steps"),)
        yield Finding(("critic", "only_steps"), message, cure, None, only_steps, related=related)


def critic_of_transformers(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A critic cannot be built from the layers of transformers."""
    if needs.critic and spec.model.implementation == "transformers":
        message = f'"transformers" does not support the critic that {spec.algorithm.type} needs'
        path: KeyPath = ("model", "implementation")
        cure = "remove it, or choose an algorithm without a critic"
        yield Finding(path, message, cure, related=(("algorithm", "type"),))
