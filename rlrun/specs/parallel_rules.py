"""Rules of `[trainer.parallel]`: degrees that do not fit together, and settings of what is not there."""

from collections.abc import Iterator

from rlrun.specs.job import Spec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import Rule, given, no_effect

PARALLEL: KeyPath = ("trainer", "parallel")


def expert_ranks(spec: Spec) -> Iterator[Finding]:
    """Experts are shared out over whole groups of the ranks that are there."""
    parallel = spec.trainer.parallel
    ranks = parallel.fsdp * parallel.context * parallel.tensor
    if ranks % parallel.expert:
        message = (
            f"does not divide fsdp {parallel.fsdp} × context {parallel.context} × tensor {parallel.tensor} = "
            f"{ranks}, the ranks it would use"
        )
        fits = " or ".join(str(degree) for degree in range(1, ranks + 1) if ranks % degree == 0)
        others = tuple((*PARALLEL, name) for name in ("fsdp", "context", "tensor"))
        yield Finding(
            (*PARALLEL, "expert"), message, f"{fits} would fit", found=parallel.expert, others=others
        )


def settings_of_nothing(spec: Spec) -> Iterator[Finding]:
    """A setting of a kind of parallelism whose degree is 1."""
    for setting, degree in (
        ("sequence_parallel", "tensor"),
        ("context_balance", "context"),
        ("pipeline_schedule", "pipeline"),
    ):
        if given(spec.trainer.parallel, setting) and getattr(spec.trainer.parallel, degree) == 1:
            others = ((*PARALLEL, degree),)
            yield no_effect((*PARALLEL, setting), f"{degree} is 1", f"remove it, or raise {degree}", others)


def transformers_layers(spec: Spec) -> Iterator[Finding]:
    """transformers' own layers are shared out over data alone."""
    if spec.model.implementation != "transformers":
        return
    chosen = (("model", "implementation"),)
    for name in ("tensor", "context", "pipeline", "expert"):
        if (degree := getattr(spec.trainer.parallel, name)) > 1:
            message = 'model.implementation = "transformers" has layers that only data parallelism splits'
            yield Finding((*PARALLEL, name), message, "use fsdp or replicate", found=degree, others=chosen)
    for path, value in (
        (("trainer", "compile"), spec.trainer.compile),
        (("model", "random_init"), spec.model.random_init),
    ):
        if value:
            message = 'is not there with model.implementation = "transformers"'
            yield Finding(path, message, "remove it", found=value, others=chosen)
    if spec.trainer.offload == "all":
        message = 'parameters stay on the device with model.implementation = "transformers"'
        yield Finding(("trainer", "offload"), message, 'use "optimizer"', found="all", others=chosen)


PARALLEL_RULES: tuple[Rule, ...] = (expert_ranks, settings_of_nothing, transformers_layers)
