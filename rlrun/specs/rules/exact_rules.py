"""Rules of `true_on_policy`: precisions, and the arguments of servers."""

import json
from collections.abc import Iterator

from rlrun.specs.derived.on_policy_target import SERVER_ARGUMENTS, rounds_as_target
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule
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


def exact_precision(spec: Spec) -> Iterator[Finding]:
    """Engines compute in the trainer's precision."""
    engine, trainer = spec.engine.given("dtype"), spec.trainer.given("dtype")
    if spec.true_on_policy and engine is not None and trainer is not None and engine != trainer:
        message = f"must be trainer.dtype with true_on_policy, found {json.dumps(engine)}"
        related: tuple[KeyPath, ...] = (("trainer", "dtype"), EXACT)
        cure = f'set engine.dtype = "{trainer}", or remove it'
        yield Finding(("engine", "dtype"), message, cure, found=engine, related=related)


def exact_servers(spec: Spec) -> Iterator[Finding]:
    """Reports arguments with which SGLang servers and the trainer cannot be equal bit for bit on GPUs."""
    if not rounds_as_target(spec):
        return
    fixed = {flag_name(name): value for name, value in _FIXED_ARGUMENTS.items()}
    for name, value in spec.engine.sglang.items():
        if value != fixed.get(flag_name(name), value):
            message = "changes how servers sum or round, which true_on_policy has to fix"
            key = ("engine", "sglang", name)
            yield Finding(key, message, "remove it, or remove true_on_policy", found=value, related=(EXACT,))


def untried_on_gpus(spec: Spec) -> Iterator[Finding]:
    """Warns of what was not shown for `true_on_policy` on GPUs."""
    if rounds_as_target(spec):
        message = (
            "was never run on a GPU: that both sides get the same bits from SGLang's kernels, from "
            "FlashAttention 3 and from compiled rotations is not shown"
        )
        cure = "the first step ends the run if they differ; docs/true-on-policy.md says what was shown"
        yield Finding(EXACT, message, cure, at_value=False)


EXACT_RULES: tuple[Rule, ...] = (exact_precision, exact_servers)
