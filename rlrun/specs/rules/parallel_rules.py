"""Rules of `[trainer.parallel]`: degrees that do not fit together, and settings that have no effect."""

from collections.abc import Iterator

from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, is_given, no_effect
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import DEGREE_OF

PARALLEL: KeyPath = ("trainer", "parallel")


def expert_ranks(spec: Spec) -> Iterator[Finding]:
    """The degree of expert parallelism divides the ranks that experts are sharded over."""
    parallel = spec.trainer.parallel
    ranks = parallel.fsdp * parallel.context * parallel.tensor
    if ranks % parallel.expert:
        message = (
            f"must divide the {ranks} ranks that hold experts (fsdp {parallel.fsdp} × context "
            f"{parallel.context} × tensor {parallel.tensor}), found {parallel.expert}"
        )
        divisors = " or ".join(str(degree) for degree in range(1, ranks + 1) if ranks % degree == 0)
        related = tuple((*PARALLEL, name) for name in ("fsdp", "context", "tensor"))
        yield Finding(
            (*PARALLEL, "expert"), message, f"use {divisors}", found=parallel.expert, related=related
        )


def settings_of_unused_parallelism(spec: Spec) -> Iterator[Finding]:
    """Reports settings of a kind of parallelism whose degree is 1."""
    for setting, degree in DEGREE_OF.items():
        if is_given(spec.trainer.parallel, setting) and getattr(spec.trainer.parallel, degree) == 1:
            related = ((*PARALLEL, degree),)
            why = f"trainer.parallel.{degree} is 1"
            yield no_effect((*PARALLEL, setting), why, f"remove it, or raise {degree}", related)


def resharding(spec: Spec) -> Iterator[Finding]:
    """Parameters are only gathered where there are several ranks."""
    parallel, path = spec.trainer.parallel, (*PARALLEL, "reshard_after_forward")
    if is_given(parallel, "reshard_after_forward") and parallel.world_size == 1:
        yield no_effect(path, "one rank does not shard parameters", "remove it", ((*PARALLEL, "fsdp"),))


def gpu_exchanges(spec: Spec) -> Iterator[Finding]:
    """Exchanges by other means than NCCL's plain collectives run on GPUs only."""
    parallel, gpus = spec.trainer.parallel, (("cluster", "gpus_per_node"),)
    dispatcher = parallel.token_dispatcher
    for setting, used in (
        ("token_dispatcher", dispatcher != "standard"),
        ("async_tensor", parallel.async_tensor),
        ("symmetric_memory", parallel.symmetric_memory),
    ):
        if used and not spec.cluster.gpus_per_node:
            message = "needs GPUs, and the job has none (cluster.gpus_per_node = 0)"
            found = getattr(parallel, setting)
            yield Finding((*PARALLEL, setting), message, "remove it", found=found, related=gpus)
    if dispatcher == "deepep" and spec.trainer.given("dtype") == "float32":
        message, dtype = "DeepEP only exchanges bfloat16", (("trainer", "dtype"),)
        cure = 'set trainer.dtype = "bfloat16", or token_dispatcher = "standard"'
        yield Finding((*PARALLEL, "token_dispatcher"), message, cure, found=dispatcher, related=dtype)
    if dispatcher == "deepep" and spec.trainer.precision is not None:
        message = (
            f'is not supported together with trainer.precision = "{spec.trainer.precision}", whose products '
            "need padded tokens of each expert"
        )
        precision = (("trainer", "precision"),)
        path = (*PARALLEL, "token_dispatcher")
        yield Finding(path, message, "remove one of the two", found=dispatcher, related=precision)


def symmetric_memory(spec: Spec) -> Iterator[Finding]:
    """NCCL's symmetric memory holds gathered parameters, on the GPU, and excludes torch's own symmetric
    memory.
    """
    parallel, path = spec.trainer.parallel, (*PARALLEL, "symmetric_memory")
    if not parallel.symmetric_memory:
        return
    if parallel.fsdp * parallel.context == 1:
        related: tuple[KeyPath, ...] = ((*PARALLEL, "fsdp"), (*PARALLEL, "context"))
        why = "trainer.parallel.fsdp and context are 1, so no rank gathers parameters"
        yield no_effect(path, why, "remove it, or raise fsdp", related)
    if parallel.async_tensor:
        message = "cannot be used with async_tensor: a process has either NCCL's symmetric memory or torch's"
        related = ((*PARALLEL, "async_tensor"),)
        yield Finding(path, message, "remove one of the two", found=True, related=related)


def async_tensor(spec: Spec) -> Iterator[Finding]:
    """Overlapped exchanges gather and reduce parts of the sequence, among GPUs of one node."""
    parallel, path = spec.trainer.parallel, (*PARALLEL, "async_tensor")
    if not parallel.async_tensor or parallel.tensor == 1:
        return
    tensor = (*PARALLEL, "tensor")
    if not parallel.sequence_parallel:
        message = "needs sequence_parallel, whose gathers and reductions it overlaps"
        related: tuple[KeyPath, ...] = ((*PARALLEL, "sequence_parallel"), tensor)
        yield Finding(path, message, "remove one of the two", found=True, related=related)
    gpus = spec.cluster.gpus_per_node
    if 0 < gpus < parallel.tensor:
        message = (
            f"needs tensor-parallel ranks on one node, and tensor = {parallel.tensor} is more than "
            f"cluster.gpus_per_node = {gpus}"
        )
        related = (tensor, ("cluster", "gpus_per_node"))
        yield Finding(path, message, "remove it, or lower tensor", found=True, related=related)
    for key, value in (
        (("trainer", "lora"), spec.trainer.lora),
        (("trainer", "compile"), spec.trainer.compile),
        (("trainer", "precision"), spec.trainer.precision),
    ):
        if value:
            message = f"is not supported together with {dotted(key)}"
            yield Finding(path, message, "remove one of the two", found=True, related=(key, tensor))


def pipeline_stages(spec: Spec) -> Iterator[Finding]:
    """Every pipeline stage is given a number of layers."""
    parallel = spec.trainer.parallel
    sizes = parallel.pipeline_layers
    if parallel.pipeline == 1 or sizes is None or len(sizes) == parallel.stages:
        return
    each = "one stage" if parallel.stages == parallel.pipeline else "two stages"
    message = (
        f"has {len(sizes)} numbers, and {parallel.pipeline} ranks with {each} each "
        f"({parallel.pipeline_schedule}) have {parallel.stages} stages"
    )
    related = ((*PARALLEL, "pipeline"), (*PARALLEL, "pipeline_schedule"))
    yield Finding((*PARALLEL, "pipeline_layers"), message, f"give {parallel.stages} numbers", related=related)


def transformers_layers(spec: Spec) -> Iterator[Finding]:
    """The layers of transformers run without some kinds of parallelism and some options of the trainer."""
    if spec.model.implementation != "transformers":
        return
    chosen = (("model", "implementation"),)
    for name in ("context", "pipeline"):
        if (degree := getattr(spec.trainer.parallel, name)) > 1:
            message = 'must be 1 with model.implementation = "transformers"'
            cure = "use the other kinds of parallelism, which docs/families.md shows by family"
            yield Finding((*PARALLEL, name), message, cure, found=degree, related=chosen)
    for path, value in (
        ((*PARALLEL, "symmetric_memory"), spec.trainer.parallel.symmetric_memory),
        ((*PARALLEL, "async_tensor"), spec.trainer.parallel.async_tensor),
        ((*PARALLEL, "token_dispatcher"), spec.trainer.parallel.token_dispatcher != "standard"),
        (("trainer", "moe", "routing_replay"), spec.trainer.moe.routing_replay != "off"),
        (("trainer", "compile"), spec.trainer.compile),
        (("model", "random_init"), spec.model.random_init),
    ):
        if value:
            message = 'is not supported with model.implementation = "transformers"'
            yield Finding(path, message, "remove it", found=value, related=chosen)
    if spec.trainer.offload == "all":
        message = 'model.implementation = "transformers" cannot keep parameters in host memory'
        yield Finding(("trainer", "offload"), message, 'use "optimizer"', found="all", related=chosen)


PARALLEL_RULES: tuple[Rule, ...] = (
    expert_ranks,
    settings_of_unused_parallelism,
    resharding,
    gpu_exchanges,
    symmetric_memory,
    async_tensor,
    pipeline_stages,
    transformers_layers,
)
