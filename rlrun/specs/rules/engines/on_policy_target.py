"""`true_on_policy` on GPUs: SGLang servers with `rl_on_policy_target`, and what their jobs need.

The trainer computes with the server's kernels, and rounds where the server rounds (docs/true-on-policy.md).
"""

import json
from collections.abc import Iterator
from typing import Any

from rlrun.specs.derived.on_policy_target import SERVER_ARGUMENTS, rounds_as_target
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

EXACT: KeyPath = ("true_on_policy",)
_FIXED_ARGUMENTS = SERVER_ARGUMENTS | {
    "prefill_attention_backend": "fa3",
    "decode_attention_backend": "fa3",
    "page_size": 1,
    "pp_size": 1,
    "attn_dp_size": 1,
    "kv_cache_dtype": "auto",
    "quantization": None,
    "enable_torch_compile": False,
}
"""Arguments with which a server computes in another order or precision, with the values that do not."""


def exact_servers(spec: Spec) -> Iterator[Finding]:
    """Reports settings with which SGLang servers and the trainer cannot be equal bit for bit on GPUs."""
    if not rounds_as_target(spec):
        return
    for path, value, supported, why in _settings(spec):
        if value != supported:
            yield _unsupported(path, value, supported, why)
    fixed = {flag_name(name): value for name, value in _FIXED_ARGUMENTS.items()}
    for name, value in spec.engine.sglang.items():
        if value != fixed.get(flag_name(name), value):
            message = "changes how servers sum or round, which true_on_policy has to fix"
            key = ("engine", "sglang", name)
            yield Finding(key, message, "remove it, or remove true_on_policy", found=value, related=(EXACT,))


def _unsupported(path: KeyPath, value: Any, supported: Any, why: str) -> Finding:
    message, cure = f"is not supported with true_on_policy on GPUs: {why}", "remove it"
    if supported is not None:
        message = f"has to be {json.dumps(supported)} with true_on_policy on GPUs: {why}"
        cure = f"set {path[-1]} = {json.dumps(supported)}"
    return Finding(path, message, f"{cure}, or remove true_on_policy", found=value, related=(EXACT,))


def untried_on_gpus(spec: Spec) -> Iterator[Finding]:
    """Warns of what was not shown for `true_on_policy` on GPUs."""
    if rounds_as_target(spec):
        message = (
            "was never run on a GPU: that both sides get the same bits from SGLang's kernels, from "
            "FlashAttention 3 and from compiled rotations is not shown"
        )
        cure = "the first step ends the run if they differ; docs/true-on-policy.md says what was shown"
        yield Finding(EXACT, message, cure, at_value=False)


def _settings(spec: Spec) -> Iterator[tuple[KeyPath, Any, Any, str]]:
    """Yields keys, their values, the only supported values, and the reasons."""
    trainer, engine = spec.trainer, spec.engine
    why = "native engines sum in an order that depends on the batch there"
    yield ("engine", "type"), engine.type, "sglang", why
    if engine.python is not None:
        why = "the trainer computes with the kernels of the SGLang in its own environment"
        yield ("engine", "python"), engine.python, None, why
    yield ("engine", "tensor"), engine.tensor, 1, "servers that split a sum round it differently"
    algorithm = engine.speculative.algorithm
    yield ("engine", "speculative", "algorithm"), algorithm, None, "servers verify drafts with other kernels"
    if engine.weight_delta == "elements":
        why = "servers hold embeddings and norms in float32, and deltas are of bfloat16"
        yield ("engine", "weight_delta"), "elements", "off", why
    dtype = trainer.given("dtype") or "bfloat16"
    yield ("trainer", "dtype"), dtype, "bfloat16", "servers multiply in bfloat16"
    yield ("trainer", "head_dtype"), trainer.head_dtype, "model", "servers compute bfloat16 logits"
    why = "servers compute attention with FlashAttention 3"
    yield ("trainer", "flash_attention"), trainer.flash_attention, "FA3", why
    pipeline = trainer.parallel.pipeline
    yield ("trainer", "parallel", "pipeline"), pipeline, 1, "stages exchange hidden states in bfloat16"
