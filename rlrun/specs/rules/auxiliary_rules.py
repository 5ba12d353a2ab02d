"""Rules of `[reference]`, `[teacher]` and `[critic]`: which ones an algorithm needs, and how they are run."""

from collections.abc import Iterator
from pathlib import Path

from rlrun.models.json_files import read_json_object
from rlrun.specs.derived.compared_tokens import vocabulary_problem
from rlrun.specs.derived.served_adapters import teacher_shares_policy
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.auxiliary_models import auxiliary_layout
from rlrun.specs.sections.job import Spec


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


def compared_tokens(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A loss compares at most as many tokens as there are. A model on the hub is checked when it is read."""
    file = Path(spec.model.path) / "config.json"
    if needs.divergence is None or not file.is_absolute():
        return
    try:
        vocabulary = read_json_object(file).get("vocab_size")
    except (OSError, ValueError):
        return  # the model's own checks report a broken file
    if isinstance(vocabulary, int) and (problem := vocabulary_problem(needs, vocabulary)):
        is_term = spec.algorithm.params.get("distillation")
        path: KeyPath = ("distillation", "divergence", "top_k") if is_term else ("top_k",)
        cure = f"set at most {vocabulary}"
        found = needs.divergence.top_k
        yield Finding(("algorithm", *path), problem, cure, found=found, related=(("model", "path"),))


def layouts(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The layout of a teacher or critic uses all of the trainer's ranks."""
    ranks = spec.trainer.parallel.world_size
    for name, section in (("teacher", spec.teacher), ("critic", spec.critic)):
        if section is None or section.parallel is None or not getattr(needs, name):
            continue
        auxiliary_ranks = auxiliary_layout(section.parallel, ranks).world_size
        if auxiliary_ranks != ranks:
            path: KeyPath = (name, "parallel")
            message = (
                f"must use all trainer ranks ({ranks}), found fsdp · replicate · tensor = {auxiliary_ranks}"
            )
            cure = f"change it, or remove it to shard the {name} over all ranks"
            yield Finding(path, message, cure, related=(("trainer", "parallel"),))


def critic_only_steps(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The policy is trained in at least one step."""
    only_steps, steps = spec.critic.only_steps, spec.trainer.steps
    if spec.debug.trains and needs.critic and steps is not None and only_steps >= steps:
        message = (
            f"must be less than trainer.steps = {steps}, found {only_steps}: the policy would never be "
            "trained"
        )
        cure = f"set at most {steps - 1}, or raise trainer.steps"
        related: tuple[KeyPath, ...] = (("trainer", "steps"),)
        yield Finding(("critic", "only_steps"), message, cure, None, only_steps, related=related)
