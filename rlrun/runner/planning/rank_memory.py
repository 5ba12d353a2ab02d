"""Counts the memory of a job's trainer ranks: on the fullest device, and in host memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.memory import (
    Part,
    Phase,
    critic_part,
    multiply_phase,
    teacher_part,
    training_phase,
)
from rlrun.runner.planning.rank_layout import largest_pass, most_routed_tokens
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.runner.planning.storage import checkpoint_copy_bytes
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.sampling_mask import candidates_of
from rlrun.specs.sections.trainer import TrainerSpec

PERSISTENT_PARTS = (
    "frozen parameters",
    "parameters",
    "optimizer",
    "critic",
    "teacher",
    "reference",
    "unfinished checkpoint",
    "CUDA and NCCL",
    "exchange buffers",
)
"""Memory that ranks keep while engines generate, by the part's name."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of all ranks on one device, in bytes."""

    training: Phase
    during_generation: int
    """Memory that the ranks hold while engines work."""
    after_release: int
    """Memory that remains in use after the ranks have released theirs to colocated engines."""


def rank_memory(job: PlannedJob) -> RankMemory:
    """Returns the memory of the ranks on the fullest device.

    A GPU has one rank. On CPU the device is a node's host memory: it has all ranks of the node, with the
    copies that ranks on GPUs keep in host memory.
    """
    candidates = candidates_of(job.spec)
    training = training_phase(
        job.model,
        job.spec.trainer,
        job.needs.undivided(job.plan.max_sample_tokens),
        gpu=job.on_gpu,
        candidates=candidates,
        compared=job.needs.compared_tokens,
        wide_stream=rounds_as_target(job.spec),
    )
    host_copies = () if job.on_gpu else _host_copies(job)
    rank = Phase(
        training.name, (*training.parts, *_auxiliary_models(job), *_exchange_buffers(job), *host_copies)
    )
    count = 1 if job.on_gpu else job.most_on_a_node(job.plan.ranks)
    persistent = count * sum(rank.part_bytes(name) for name in PERSISTENT_PARTS)
    # on CPU there is no other memory to release it to
    after_release = sum(map(rank.part_bytes, _kept_parts(job))) if job.on_gpu else persistent
    return RankMemory(multiply_phase(rank, count), persistent, after_release)


def _kept_parts(job: PlannedJob) -> tuple[str, ...]:
    """Returns the names of the parts that ranks cannot release to engines."""
    # gathered layers are in a pool of NCCL's symmetric memory, which keeps what it has allocated
    pool = ("gathered layers",) if job.spec.trainer.parallel.symmetric_memory else ()
    return ("CUDA and NCCL", "exchange buffers", *pool)


def _exchange_buffers(job: PlannedJob) -> Iterator[Part]:
    spec = job.spec
    longest, per_node = job.needs.undivided(job.plan.max_sample_tokens), spec.cluster.gpus_per_node
    for size, how in _buffer_sizes(job.model, spec.trainer, longest, per_node):
        yield Part("exchange buffers", size, how)


def reference_bytes(job: PlannedJob) -> int:
    """Returns the host memory per rank for the reference policy: as much as the policy without offloading."""
    if not job.needs.reference or job.spec.reference.engine is not None:
        return 0
    return _copy_of_policy(job)


def teacher_copy_bytes(job: PlannedJob) -> int:
    """Returns the host memory per rank for a teacher that is the policy with other weights."""
    teacher = job.spec.teacher
    if not job.needs.teacher or teacher is None or teacher.weights not in ("initial", "average"):
        return 0
    return _copy_of_policy(job)


def _copy_of_policy(job: PlannedJob) -> int:
    without_offload = job.spec.trainer.model_copy(update={"offload": "none"})
    return training_phase(job.model, without_offload, gpu=False).part_bytes("parameters")


def staged_bytes(job: PlannedJob) -> int:
    """Returns the host memory per rank for its copy of a checkpoint that is written during training."""
    if not job.spec.checkpoint.asynchronous:
        return 0
    size = checkpoint_copy_bytes(
        job.model, job.spec.trainer, job.critic, optimizer=job.spec.checkpoint.optimizer
    )
    if job.spec.teacher is not None and job.spec.teacher.weights == "average":
        size += teacher_copy_bytes(job)
    return size + (reference_bytes(job) if job.spec.reference.update_interval else 0)


def _host_copies(job: PlannedJob) -> Iterator[Part]:
    if size := reference_bytes(job):
        yield Part("reference", size, "in host memory between its passes")
    if size := teacher_copy_bytes(job):
        yield Part("teacher", size, "the policy's other weights, in host memory between passes")
    if size := staged_bytes(job):
        yield Part("unfinished checkpoint", size, "checkpoint.asynchronous")


def _auxiliary_models(job: PlannedJob) -> Iterator[Part]:
    """Yields the critic and the teacher, which share the trainer's devices."""
    spec = job.spec
    if job.needs.critic:
        yield critic_part(job.model, spec.trainer, spec.critic, gpu=job.on_gpu)
    if job.teacher is not None and spec.teacher is not None:
        yield teacher_part(job.teacher, spec.trainer, spec.teacher)


def _buffer_sizes(
    model: Architecture, trainer: TrainerSpec, longest: int, gpus_per_node: int
) -> Iterator[tuple[int, str]]:
    """Yields the bytes of each buffer of a rank, and what it is. Samples have at most `longest` tokens.

    The buffers are allocated once and never released, also while engines use the GPU.
    """
    if trainer.parallel.token_dispatcher == "deepep" and model.experts is not None:
        tokens = most_routed_tokens(trainer, longest)
        yield (
            _deepep_bytes(model, trainer.parallel.expert, tokens, gpus_per_node),
            f"DeepEP, {tokens:,} tokens",
        )
    if trainer.parallel.async_tensor:
        # two pieces of the sum over ranks: one is sent while the other is computed
        ranks = trainer.parallel.context * trainer.parallel.tensor
        rows = -(-largest_pass(trainer, longest) // ranks)
        yield 2 * rows * model.hidden * ITEM_BYTES[trainer.dtype], f"async_tensor, 2 × {rows:,} tokens"


def _deepep_bytes(model: Architecture, ranks: int, tokens: int, gpus_per_node: int) -> int:
    """Returns the bytes of DeepEP's buffer: `tokens` of each rank, and copies for the network between nodes.

    As in DeepEP 2 (`get_dispatch_buffer_size` in csrc/elastic/buffer.hpp), whose tokens carry an id and a
    weight for each expert. A node counts as one domain of NVLink.
    """
    assert model.experts is not None
    token = model.hidden * 2 + model.experts.per_token * 8
    nodes = -(-ranks // max(gpus_per_node, 1))
    return (ranks + (1 + nodes if nodes > 1 else 0)) * tokens * token
