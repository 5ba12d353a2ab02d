"""Rules of `[trainer.parallel]`: degrees and numbers of layers that do not fit together."""

from collections.abc import Iterator

from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule
from rlrun.specs.sections.job import Spec

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


def async_tensor(spec: Spec) -> Iterator[Finding]:
    """Overlapped exchanges are among GPUs of one node."""
    parallel, path, tensor = spec.trainer.parallel, (*PARALLEL, "async_tensor"), (*PARALLEL, "tensor")
    gpus = spec.cluster.gpus_per_node
    if parallel.async_tensor and 0 < gpus < parallel.tensor:
        message = (
            f"needs tensor-parallel ranks on one node, and tensor = {parallel.tensor} is more than "
            f"cluster.gpus_per_node = {gpus}"
        )
        related = (tensor, ("cluster", "gpus_per_node"))
        yield Finding(path, message, "remove it, or lower tensor", found=True, related=related)


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


PARALLEL_RULES: tuple[Rule, ...] = (
    expert_ranks,
    async_tensor,
    pipeline_stages,
)
