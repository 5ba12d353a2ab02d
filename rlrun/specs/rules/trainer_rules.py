"""Rules about `[trainer]` and `[trainer.parallel]`, and about engines that the job does not start."""

from collections.abc import Iterator

from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule
from rlrun.specs.sections.job import Spec

HEAD_DTYPE: KeyPath = ("trainer", "head_dtype")
MAX_LR, LARGE_LR = 1.0, 0.01
_USUAL_LR = "1e-6 to 1e-5 for language models, 1e-5 to 1e-4 for adapters"
_PARALLEL: KeyPath = ("trainer", "parallel")


def learning_rates(spec: Spec) -> Iterator[Finding]:
    """Adam's and Muon's steps are about as large as the learning rate: above 1, no weight survives one."""
    for name, section in spec.optimizers:
        if section.optimizer != "sgd" and section.lr > MAX_LR:
            message = f"{section.optimizer} changes every weight by about this much in each step"
            yield Finding((name, "lr"), message, f"choose one of {_USUAL_LR}", found=section.lr)


def large_learning_rates(spec: Spec) -> Iterator[Finding]:
    """Warns of learning rates that are far above those of any recipe."""
    for name, section in spec.optimizers:
        if section.optimizer != "sgd" and LARGE_LR < section.lr <= MAX_LR:
            message = f"is large: {section.optimizer} changes every weight by about this much in each step"
            yield Finding((name, "lr"), message, f"usual are {_USUAL_LR}", found=section.lr)


def unsaved_optimizer(spec: Spec) -> Iterator[Finding]:
    """Warns that a run continues from its checkpoints with an empty optimizer."""
    if not spec.checkpoint.optimizer and spec.trainer.reset_optimizer == "never":
        message = "a resumed run, and one whose trainer rank died, continues with an empty optimizer"
        cure = 'with trainer.reset_optimizer = "rollout" nothing is lost by that'
        yield Finding(("checkpoint", "optimizer"), message, cure, found=False)


TRAINER_RULES: tuple[Rule, ...] = (learning_rates,)


def external_heads(spec: Spec) -> Iterator[Finding]:
    """Warns that engines which rlrun does not start compute logits in a precision of their own.

    Only engines whose log-probs are compared with the trainer's matter: not a judge's.
    """
    if spec.trainer.head_dtype != "float32":
        return
    compared = {spec.reference.engine, *(spec.teacher.engines if spec.teacher else ())} - {None}
    for path, section in engine_sections(spec):
        matters = path == POLICY or getattr(section, "name", None) in compared
        if matters and section.type == "external":
            message = (
                f"does not reach the external engines of {dotted(path)}, which compute as they were started"
            )
            cure = "start them with --enable-fp32-lm-head (SGLang) or --head-dtype float32 (rlrun's engine)"
            yield Finding(HEAD_DTYPE, message, cure, at_value=False, related=((*path, "type"),))


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
        related = tuple((*_PARALLEL, name) for name in ("fsdp", "context", "tensor"))
        yield Finding(
            (*_PARALLEL, "expert"), message, f"use {divisors}", found=parallel.expert, related=related
        )


def async_tensor(spec: Spec) -> Iterator[Finding]:
    """Overlapped exchanges are among GPUs of one node."""
    parallel, path, tensor = spec.trainer.parallel, (*_PARALLEL, "async_tensor"), (*_PARALLEL, "tensor")
    gpus = min(spec.cluster.gpus_of_nodes)
    if parallel.async_tensor and 0 < gpus < parallel.tensor:
        message = (
            f"needs tensor-parallel ranks on one node, and tensor = {parallel.tensor} is more than "
            f"cluster.gpus_per_node = {gpus}"
        )
        related = (tensor, ("cluster", "gpus_per_node"))
        yield Finding(path, message, "remove it, or lower tensor", found=True, related=related)


def elastic_ranks(spec: Spec) -> Iterator[Finding]:
    """The smallest layout is not larger than the one that the spec asks for."""
    parallel = spec.trainer.parallel
    if parallel.min_fsdp is not None and parallel.min_fsdp > parallel.fsdp:
        message = f"is more than fsdp = {parallel.fsdp}, the largest number of ranks"
        path: KeyPath = (*_PARALLEL, "min_fsdp")
        yield Finding(path, message, "lower it, or raise fsdp", found=parallel.min_fsdp)


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
    related = ((*_PARALLEL, "pipeline"), (*_PARALLEL, "pipeline_schedule"))
    yield Finding(
        (*_PARALLEL, "pipeline_layers"), message, f"give {parallel.stages} numbers", related=related
    )


PARALLEL_RULES: tuple[Rule, ...] = (
    elastic_ranks,
    expert_ranks,
    async_tensor,
    pipeline_stages,
)
