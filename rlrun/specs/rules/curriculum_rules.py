"""The rules of `data.type = "curriculum"`: it chooses rows by how the rewards of groups differ."""

from collections.abc import Iterator

from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.sections.job import Spec


def curriculum_without_results(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A curriculum needs rewards, and groups of several samples, to compare."""
    if spec.data.type != "curriculum":
        return
    path, cure = ("data", "type"), "name the type of `[data.source]` instead, with its keys under `[data]`"
    if not needs.rollout or not (spec.rewards or needs.rewards):
        message = "chooses rows by their rewards, and this job has none"
        yield Finding(path, message, cure, found="curriculum", related=(("algorithm", "type"),))
    elif spec.rollout.samples_per_prompt == 1 and not needs.group_relative:
        message = "chooses rows by how rewards differ within a group, and rollout.samples_per_prompt is 1"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(path, message, f"raise it, or {cure}", found="curriculum", related=related)


def curriculum_budget(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The mean number of samples per prompt is below the largest one."""
    budget, most = spec.data.params.get("mean_samples"), spec.rollout.samples_per_prompt
    if spec.data.type != "curriculum" or not isinstance(budget, int | float) or budget < most:
        return
    message = f"must be below rollout.samples_per_prompt, which is {most:g}, found {budget:g}"
    cure = "lower it, or raise rollout.samples_per_prompt, the most samples of a prompt"
    related = (("rollout", "samples_per_prompt"),)
    yield Finding(("data", "mean_samples"), message, cure, found=budget, related=related)
