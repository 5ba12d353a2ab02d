"""Decides which models of a job are adapters, and which of these share the policy's frozen model."""

from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.job import Spec


def shares_policy(section: EngineSpec) -> bool:
    """Returns whether the policy's own servers serve this section of `[[engines]]`, an adapter alone."""
    if not isinstance(section, NamedEngineSpec) or section.type == "external":
        return False
    return section.path is None and section.adapter is not None


def adapters_beside_policy(spec: Spec) -> dict[str, str]:
    """Returns the folders of the adapters that the policy's servers have besides the policy's, by name."""
    return {
        section.name: section.adapter
        for section in spec.engines
        if section.adapter is not None and shares_policy(section)
    }


def adapter_in_requests(section: NamedEngineSpec) -> str | None:
    """Returns the adapter that requests to a section's engines have to name; None if they name none.

    A native engine merges the adapter into its model, and serves nothing else.
    """
    has_choice = section.adapter is not None and section.type == "sglang"
    return section.name if has_choice else None


def has_one_teacher(spec: Spec) -> bool:
    """Returns whether rows without a teacher of their source have one."""
    teacher = spec.teacher
    return teacher is not None and (
        teacher.path is not None or teacher.engine is not None or teacher_in_policy_layout(spec)
    )


def teacher_in_policy_layout(spec: Spec) -> bool:
    """Returns whether the trainer's teacher is the policy's own model, with other weights or another
    adapter.
    """
    has_weights = spec.teacher is not None and spec.teacher.weights is not None
    return has_weights or teacher_shares_policy(spec)


def teacher_shares_policy(spec: Spec) -> bool:
    """Returns whether the trainer's teacher is the policy's frozen model with another adapter."""
    teacher = spec.teacher
    if teacher is None or teacher.adapter is None:
        return False
    return teacher.path is None and teacher.engine is None and teacher.weights is None
