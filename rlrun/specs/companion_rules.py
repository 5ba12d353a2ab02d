"""Rules of the models beside the policy: there where the algorithm needs them, and only there."""

from collections.abc import Iterator
from typing import Protocol

from rlrun.specs.companions import side_layout
from rlrun.specs.job import Spec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import given, no_effect


class CompanionDemands(Protocol):
    """The part of an algorithm's needs that is about other models."""

    @property
    def reference(self) -> bool:
        """Log-probs of the reference policy."""

    @property
    def teacher(self) -> bool:
        """Log-probs of a teacher."""

    @property
    def critic(self) -> bool:
        """Values of a critic."""


def idle_companions(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """A section about a model that is not loaded."""
    for name, needed in (
        ("reference", demands.reference),
        ("teacher", demands.teacher),
        ("critic", demands.critic),
    ):
        if given(spec, name) and not needed:
            why = f"{spec.algorithm.type}, as it is set, needs no {name}"
            yield no_effect((name,), why, f"remove [{name}]", (("algorithm",),))


def teacher(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """Something to distil from."""
    if demands.teacher and spec.teacher is None:
        message = f"{spec.algorithm.type} learns from a teacher, and there is none"
        yield Finding(("teacher",), message, 'add a table [teacher] with `path = "…"`', at_value=False)
    if spec.teacher is not None and (spec.teacher.path is None) == (spec.teacher.engine is None):
        message = "a teacher is either a model that the trainer loads, or one that engines serve"
        cure = "give either path or engine"
        yield Finding(("teacher",), message, cure, at_value=False)


def served_companions(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """What engines that serve a teacher or a reference can, and what is the trainer's alone."""
    for name, section, own in (
        ("teacher", spec.teacher, ("revision", "parallel")),
        ("reference", spec.reference, ("update_interval",)),
    ):
        if section is None or section.engine is None:
            continue
        where: tuple[KeyPath, ...] = ((name, "engine"),)
        for key in own:
            if given(section, key):
                yield no_effect((name, key), f"the engines have the {name}", "remove it", where)
        if spec.rollout.temperature != 1.0:
            message = f"engines give the log-probs of a {name} at temperature 1 only"
            cure = f"sample at temperature 1, or let the trainer hold the {name}"
            path: KeyPath = ("rollout", "temperature")
            yield Finding(path, message, cure, found=spec.rollout.temperature, others=where)


def teacher_revision(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """Only models on the hub have revisions."""
    path = spec.teacher.path if spec.teacher else None
    if spec.teacher is not None and spec.teacher.revision is not None and path and path.startswith("/"):
        why = f"{path} is a folder, not an id on the hub"
        yield no_effect(("teacher", "revision"), why, "remove it", (("teacher", "path"),))


def layouts(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """A companion lives on the trainer's ranks, all of them."""
    ranks = spec.trainer.parallel.world_size
    for name, section in (("teacher", spec.teacher), ("critic", spec.critic)):
        if section is None or section.parallel is None or not getattr(demands, name):
            continue
        own = side_layout(section.parallel, ranks).world_size
        if own != ranks:
            path: KeyPath = (name, "parallel")
            message = f"asks for {own} ranks, and trainer.parallel makes {ranks}"
            cure = "fsdp · replicate · tensor must be their number; left out, it is sharded over all"
            yield Finding(path, message, cure, others=(("trainer", "parallel"),))


def critic_alone(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """The policy is trained at last."""
    alone, steps = spec.critic.only_steps, spec.trainer.steps
    if demands.critic and steps is not None and alone >= steps:
        message = f"the job has {steps} steps, and the policy would be trained in none of them"
        others: tuple[KeyPath, ...] = (("trainer", "steps"),)
        yield Finding(("critic", "only_steps"), message, f"fewer than {steps}", None, alone, others=others)


def critic_of_transformers(spec: Spec, demands: CompanionDemands) -> Iterator[Finding]:
    """A critic has the policy's layers, with another head."""
    if demands.critic and spec.model.implementation == "transformers":
        message = f'{spec.algorithm.type} has a critic, which model.implementation = "transformers" has not'
        path: KeyPath = ("model", "implementation")
        yield Finding(path, message, "choose an algorithm without", others=(("algorithm", "type"),))
