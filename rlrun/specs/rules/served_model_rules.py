"""Rules of `[eval.server]`: what an evaluation over chat messages cannot do, because it sees no tokens."""

from collections.abc import Iterator

from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import RolloutFunctionSpec
from rlrun.specs.sections.section import Section

SERVER: KeyPath = ("eval", "server")
_FUNCTIONS = ("single_turn", "multi_turn_tools")
_UNSENT = {"min_response_tokens": 0, "stop_token_ids": ()}
"""Sampling keys that the protocol does not have, with the values that need none."""


def only_evaluates(spec: Spec) -> Iterator[Finding]:
    """A server is asked by evaluations without training: a job evaluates the model that it trains."""
    if spec.eval.server is not None and spec.debug.mode != "eval":
        message = "is another model than the job trains"
        yield Finding(SERVER, message, 'start it with rlrun eval, or set debug.mode = "eval"', at_value=False)


def without_tokens(spec: Spec) -> Iterator[Finding]:
    """Nothing asks for tokens, log-probs, or the same answer twice."""
    if spec.eval.server is None:
        return
    for key in ("deterministic", "true_on_policy"):
        if getattr(spec, key):
            reason = "promises nothing of the kind, and returns no log-probs"
            yield Finding((key,), f"the server of eval.server {reason}", "remove it", related=(SERVER,))
    for path, function in _functions(spec):
        if function.type not in _FUNCTIONS:
            message = f'"{function.type}" works on tokens, and eval.server answers with text'
            cure = f"use {' or '.join(_FUNCTIONS)}, or evaluate on engines"
            yield Finding((*path, "type"), message, cure, found=function.type, related=(SERVER,))
        elif function.params.get("syntax") == "tags":
            message = '"tags" inserts results into an answer, and a chat server cannot continue one'
            yield Finding((*path, "syntax"), message, "remove it", found="tags", related=(SERVER,))
    for path, section in _sampling(spec):
        for key, unset in _UNSENT.items():
            if section.given(key) not in (None, unset):
                message = "is not part of OpenAI's protocol, which eval.server speaks"
                cure = "remove it, or give it under the server's own name in eval.server.extra_body"
                yield Finding((*path, key), message, cure, at_value=False, related=(SERVER,))
    for number, dataset in enumerate(spec.eval.datasets):
        if not dataset.apply_chat_template:
            message = "a chat server always applies its template"
            path = ("eval", "datasets", number, "apply_chat_template")
            yield Finding(path, message, "remove it, or evaluate on engines", related=(SERVER,))


def _functions(spec: Spec) -> Iterator[tuple[KeyPath, RolloutFunctionSpec]]:
    """Yields the rollouts that answer the datasets' prompts, each with its table."""
    own = [dataset.given("function") for dataset in spec.eval.datasets]
    if None in own:
        yield ("rollout", "function"), spec.rollout.function
    for number, function in enumerate(own):
        if function is not None:
            yield ("eval", "datasets", number, "function"), function


def _sampling(spec: Spec) -> Iterator[tuple[KeyPath, Section]]:
    """Yields the tables that sampling settings of evaluations come from."""
    yield ("rollout",), spec.rollout
    yield ("eval",), spec.eval
    for number, dataset in enumerate(spec.eval.datasets):
        yield ("eval", "datasets", number), dataset


SERVED_MODEL_RULES: tuple[Rule, ...] = (only_evaluates, without_tokens)
