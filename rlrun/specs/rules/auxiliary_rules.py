"""Rules of `[reference]`, `[teacher]` and `[critic]`: which ones an algorithm needs, and how they are run."""

from collections.abc import Iterator
from pathlib import Path

from rlrun.models.json_files import read_json_object
from rlrun.specs.derived.compared_tokens import vocabulary_problem
from rlrun.specs.derived.served_adapters import teacher_shares_policy
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.auxiliary_models import FEEDBACK, SOLUTION, auxiliary_layout
from rlrun.specs.sections.job import Spec
from rlrun.specs.text_template import template_names


def teacher(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Distillation needs a teacher: a model that the trainer loads, one that engines serve, or the policy."""
    if needs.teacher and spec.teacher is None:
        message = f"{spec.algorithm.type} learns from a teacher, and the spec has none"
        yield Finding(("teacher",), message, 'add a table [teacher] with `path = "…"`', at_value=False)
    if spec.teacher is None or teacher_shares_policy(spec):
        return
    given = [name for name in ("path", "engine", "weights") if getattr(spec.teacher, name) is not None]
    if len(given) > 1 or not (given or spec.teacher.sources):
        problem = f"has {' and '.join(given)}" if given else "needs path, engine or weights"
        message = (
            f"{problem}: the trainer loads the teacher (path), [[engines]] serve it (engine), or it is the "
            "policy itself (weights)"
        )
        cure = "keep one of them" if given else "add one of them"
        keys: tuple[KeyPath, ...] = (("teacher", "path"), ("teacher", "engine"), ("teacher", "weights"))
        yield Finding(("teacher",), message, cure, at_value=False, related=keys)


def teacher_prompt(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The teacher's own prompt tells it something of the row or of the sample that the spec provides."""
    if spec.teacher is None or not needs.teacher:
        return
    prompt = spec.teacher.prompt
    if prompt is None:
        if spec.teacher.weights == "current":
            message = "is the policy itself, which with the policy's prompt has nothing to teach"
            cure = 'add `prompt = "…"`, or set weights = "initial"'
            yield Finding(("teacher", "weights"), message, cure, related=(("teacher", "prompt"),))
        return
    names = template_names(prompt)
    path: KeyPath = ("teacher", "prompt")
    if not names:
        yield Finding(path, "has no name in braces, so that it is the same for all rows", "add {prompt}")
    for name in sorted(names & {SOLUTION, FEEDBACK}):
        if not needs.rollout:
            message = f"has {{{name}}}, and the rows' own responses are trained, which nothing scores"
            yield Finding(path, message, f"remove {{{name}}}")
    if SOLUTION in names and needs.rollout:
        if not spec.rewards:
            message = "has {solution}, a sample of the group with at least teacher.success_reward, and no "
            message += "reward scores samples"
            yield Finding(path, message, "add [[rewards]], or remove {solution}", related=(("rewards",),))
        if spec.rollout.samples_per_prompt < 2:
            related: tuple[KeyPath, ...] = (("rollout", "samples_per_prompt"),)
            message = "has {solution}, another sample of the same group, and groups have one sample"
            yield Finding(path, message, "set rollout.samples_per_prompt to at least 2", related=related)


def served_divergence(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Engines give a teacher's log-probs at temperature 1 only."""
    if needs.divergence is None or spec.teacher is None or not spec.teacher.engines:
        return
    if needs.divergence.temperature not in (None, 1.0):
        path = (*_divergence_path(spec), "temperature")
        message = "is not supported with teachers on engines, which give log-probs at temperature 1"
        cure = "set 1, or let the trainer load the teacher (teacher.path)"
        found = needs.divergence.temperature
        related: tuple[KeyPath, ...] = (("teacher", "engine"), ("teacher", "sources"))
        yield Finding(("algorithm", *path), message, cure, found=found, related=related)


def _divergence_path(spec: Spec) -> KeyPath:
    """Returns where the divergence's keys are under `[algorithm]`."""
    return ("distillation", "divergence") if spec.algorithm.params.get("distillation") else ()


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
        path = (*_divergence_path(spec), "top_k")
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
