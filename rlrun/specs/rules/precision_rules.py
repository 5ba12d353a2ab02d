"""Rules of `trainer.precision` and `true_on_policy`: what they need, and what they do not support."""

import json
from collections.abc import Iterator

from rlrun.specs.derived.sampling_mask import cuts_vocabulary
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.engines.on_policy_target import EXACT, exact_servers
from rlrun.specs.rules.shared_rules import Rule, is_given, no_effect
from rlrun.specs.sections.job import Spec

PRECISION: KeyPath = ("trainer", "precision")
RECIPE: KeyPath = ("trainer", "float8_recipe")
GROUP: KeyPath = ("trainer", "int4_group")


def unsupported_with_precision(spec: Spec) -> Iterator[Finding]:
    """Reports settings that low precision does not support."""
    if spec.trainer.precision is None:
        return
    on_cpu = not spec.cluster.gpus_per_node
    for path, value, supported in (
        (("trainer", "dtype"), spec.trainer.given("dtype") or "bfloat16", "bfloat16"),
        (("model", "implementation"), spec.model.implementation, "torchtitan"),
        (("trainer", "parallel", "async_tensor"), spec.trainer.parallel.async_tensor, False),
        (("trainer", "parallel", "token_dispatcher"), spec.trainer.parallel.token_dispatcher, "standard"),
        (("trainer", "compile"), on_cpu and spec.trainer.compile, False),
    ):
        if value != supported:
            where = " in a job without GPUs" if path[-1] == "compile" else ""
            message = f'is not supported with trainer.precision = "{spec.trainer.precision}"{where}'
            cure = f"set {path[-1]} = {json.dumps(supported)}, or remove trainer.precision"
            yield Finding(path, message, cure, found=value, related=(PRECISION,))


def gpus_only(spec: Spec) -> Iterator[Finding]:
    """torchao multiplies in NVFP4 only on GPUs: its kernels are written in triton."""
    if spec.trainer.precision == "nvfp4" and not spec.cluster.gpus_per_node:
        message = "needs GPUs of compute capability 10.0 (Blackwell); torchao has no NVFP4 products for CPUs"
        cure = 'use "mxfp8" or "float8" to try low precision on a CPU'
        related: tuple[KeyPath, ...] = (("cluster", "gpus_per_node"),)
        yield Finding(PRECISION, message, cure, found="nvfp4", related=related)


def unused_recipe(spec: Spec) -> Iterator[Finding]:
    """A recipe of float8 only has an effect on float8."""
    if is_given(spec.trainer, "float8_recipe") and spec.trainer.precision != "float8":
        precision = json.dumps(spec.trainer.precision) if spec.trainer.precision else "unset"
        cure = 'remove it, or set trainer.precision = "float8"'
        yield no_effect(RECIPE, f"trainer.precision is {precision}", cure, (PRECISION,))


def unused_group(spec: Spec) -> Iterator[Finding]:
    """A group of numbers with one scale only exists where matrices are rounded to INT4."""
    if is_given(spec.trainer, "int4_group") and spec.trainer.rounded_group is None:
        precision = json.dumps(spec.trainer.precision) if spec.trainer.precision else "unset"
        cure = 'remove it, or set trainer.precision = "int4_qat"'
        yield no_effect(GROUP, f"trainer.precision is {precision}", cure, (PRECISION,))


def rounded_with_adapters(spec: Spec) -> Iterator[Finding]:
    """Engines get sums of matrices and adapters, which are not the numbers that the trainer rounds."""
    if spec.trainer.rounded_group is not None and spec.trainer.lora is not None:
        message = (
            '"int4_qat" is not supported with [trainer.lora]: adapters are added after the matrices are '
            "rounded, and engines would have to round the sum again"
        )
        cure = 'remove one of the two; [trainer.lora] base = "nf4" trains adapters on a base in 4 bits'
        yield Finding(PRECISION, message, cure, found="int4_qat", related=(("trainer", "lora"),))


def unsupported_when_exact(spec: Spec) -> Iterator[Finding]:
    """Reports settings with which log-probs of trainer and engines cannot be equal bit for bit."""
    if not spec.true_on_policy:
        return
    parallel = spec.trainer.parallel
    for path, value, supported, why in (
        (
            ("trainer", "parallel", "tensor"),
            parallel.tensor,
            1,
            "ranks that split a sum round it differently",
        ),
        (("trainer", "parallel", "context"), parallel.context, 1, "it splits a sequence's attention"),
        (("trainer", "precision"), spec.trainer.precision, None, "engines multiply in another precision"),
        (("trainer", "lora"), spec.trainer.lora, None, "engines round the sum of matrices and adapters"),
        (("trainer", "compile"), spec.trainer.compile, False, "the compiler chooses other kernels"),
        (("model", "implementation"), spec.model.implementation, "torchtitan", "they are other operators"),
        (
            ("rollout", "mode"),
            spec.rollout.mode,
            "sync",
            "weights change between the generation of a sample and its training",
        ),
    ):
        if value != supported:
            cure = "remove it, or remove true_on_policy"
            shown = None if path[-1] == "lora" else value
            yield Finding(
                path, f"is not supported with true_on_policy: {why}", cure, found=shown, related=(EXACT,)
            )
    if cuts_vocabulary(spec) and spec.rollout.given("sampling_mask") is not False:
        path = ("rollout", "top_p" if spec.rollout.top_p < 1 else "top_k")
        message = "with true_on_policy log-probs are those of the whole vocabulary, without a sampling mask"
        cure = "add `sampling_mask = false` under [rollout], or remove top_p and top_k"
        yield Finding(path, message, cure, related=(EXACT,))


def exact_engines(spec: Spec) -> Iterator[Finding]:
    """The engines of a job compute as the trainer does, with its weights and precision: on CPUs native ones,
    on GPUs SGLang's (`exact_servers`).
    """
    if not spec.true_on_policy:
        return
    if spec.engine.type not in (None, "native") and not spec.cluster.gpus_per_node:
        message = f"with true_on_policy engines have to be native on CPUs, found {spec.engine.type}"
        cure = 'set engine.type = "native", or remove true_on_policy'
        yield Finding(("engine", "type"), message, cure, found=spec.engine.type, related=(EXACT,))
    engine, trainer = spec.engine.given("dtype"), spec.trainer.given("dtype")
    if engine is not None and trainer is not None and engine != trainer:
        message = f"must be trainer.dtype with true_on_policy, found {json.dumps(engine)}"
        related: tuple[KeyPath, ...] = (("trainer", "dtype"), EXACT)
        cure = f'set engine.dtype = "{trainer}", or remove it'
        yield Finding(("engine", "dtype"), message, cure, found=engine, related=related)
    if spec.engine.model is not None:
        cure = "remove it, or remove true_on_policy"
        message = "is not supported with true_on_policy: engines have to serve the trainer's own weights"
        yield Finding(("engine", "model"), message, cure, found=spec.engine.model, related=(EXACT,))


PRECISION_RULES: tuple[Rule, ...] = (
    unsupported_with_precision,
    gpus_only,
    unused_recipe,
    unused_group,
    rounded_with_adapters,
    unsupported_when_exact,
    exact_engines,
    exact_servers,
)
