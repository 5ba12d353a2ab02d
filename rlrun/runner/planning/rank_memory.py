"""What a job's trainer ranks take: on the fullest device, and of its host's memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.runner.planning.memory import Part, Phase, critic, teacher, times, training
from rlrun.runner.planning.step_time import Case
from rlrun.runner.planning.storage import staged
from rlrun.specs.derived.sampling_mask import candidates_of

KEPT = (
    "parameters",
    "optimizer",
    "critic",
    "teacher",
    "reference",
    "checkpoint in the making",
    "CUDA and NCCL",
)
"""What ranks hold while others work."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks on one device, bytes of them together."""

    training: Phase
    waiting: int
    """What they hold while engines work."""
    kept: int
    """What they leave there when they have given their memory away."""


def ranks_memory(case: Case) -> Ranks:
    """The ranks of the fullest device. A GPU has one; a host has all of a node, and what others keep in host
    memory beside them.
    """
    candidates = candidates_of(case.spec, case.needs)
    found = training(
        case.model, case.spec.trainer, case.plan.max_sample_tokens, gpu=case.on_gpu, candidates=candidates
    )
    copies = () if case.on_gpu else _copies(case)
    each = Phase(found.name, (*found.parts, *_companions(case), *copies))
    count = 1 if case.on_gpu else case.most_on_a_node(case.plan.ranks)
    waiting = count * sum(each.part(name) for name in KEPT)
    # host memory is not left for the host
    return Ranks(times(each, count), waiting, each.part("CUDA and NCCL") if case.on_gpu else waiting)


def reference_bytes(case: Case) -> int:
    """Host memory of a rank for the reference policy: as large as the policy where that is not offloaded."""
    if not case.needs.reference or case.spec.reference.engine is not None:
        return 0
    at_home = case.spec.trainer.model_copy(update={"offload": "none"})
    return training(case.model, at_home, gpu=False).part("parameters")


def staged_bytes(case: Case) -> int:
    """Host memory of a rank for its copy of a checkpoint that is written while training goes on."""
    if not case.spec.checkpoint.asynchronous:
        return 0
    size = staged(case.model, case.spec.trainer, case.spec.critic if case.needs.critic else None)
    return size + (reference_bytes(case) if case.spec.reference.update_interval else 0)


def _copies(case: Case) -> Iterator[Part]:
    if size := reference_bytes(case):
        yield Part("reference", size, "between its passes")
    if size := staged_bytes(case):
        yield Part("checkpoint in the making", size, "checkpoint.asynchronous")


def _companions(case: Case) -> Iterator[Part]:
    """Other models on the trainer's devices."""
    spec = case.spec
    if case.needs.critic:
        yield critic(case.model, spec.trainer, spec.critic, gpu=case.on_gpu)
    if case.teacher is not None and spec.teacher is not None:
        yield teacher(case.teacher, spec.trainer, spec.teacher)
