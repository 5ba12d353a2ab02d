"""Reads engines' answers and checks them where they arrive, so that a bad answer is that engine's error.

    bytes ──▶ JSON ──▶ a sample at a time: token ids, log-probs, masks, versions, experts ──▶ Generation
                            └─▶ BadAnswer: "log-prob 0.7 at token 12 of sample 5-0: …"

Every check is one numpy or C-level pass over a sample: there is no Python step for each token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.config_defaults import EXPERT_COUNTS
from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import BadAnswer
from rlrun.runner.engines.client.answer_fields import (
    quoted,
    read_cached,
    read_columns,
    read_experts,
    read_finish,
    read_json,
    read_log_probs,
    read_mask,
    read_spans,
    read_tokens,
    shape,
    table,
)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What is known of the model that an engine serves."""

    vocabulary: int = 2**31
    """Token ids are below this."""
    experts: int | None = None
    """Expert ids are below this, and every answer has them; None: answers are not asked for experts."""

    @classmethod
    def of(cls, config: Mapping[str, Any], *, experts: bool = False) -> "ModelLimits":
        """Of a model with this config.json; `experts`: engines are asked which experts they chose."""
        most = next((config[key] for key in EXPERT_COUNTS if config.get(key)), np.iinfo(np.int16).max)
        return cls(config.get("vocab_size", 2**31), int(most) if experts else None)


NO_LIMITS = ModelLimits()
_SAMPLE_BYTES, _TOKEN_BYTES, _EXPERT_BYTES = 1 << 20, 512, 1 << 16
"""Generous: a token with its log-prob takes 50 bytes, its experts 6 for each that a layer chooses."""
_MOST_CANDIDATES = 1 << 18
_CANDIDATE_BYTES = 12
"""A token id of a sampling mask with its comma takes 8."""


def sample_ids(request: GenerateRequest) -> list[str]:
    """How the samples of a request are called on the wire."""
    return [f"{request.id}-{k}" for k in range(len(request.seeds))]


def most_bytes(requests: Sequence[GenerateRequest], limits: ModelLimits = NO_LIMITS) -> int:
    """How long the answer to `wire.generate_body` may be."""
    each = _TOKEN_BYTES + (0 if limits.experts is None else _EXPERT_BYTES)
    return sum(
        len(one.seeds)
        * (
            _SAMPLE_BYTES
            + each * (len(one.tokens) + one.sampling.max_new_tokens)
            + _mask_bytes(one, limits.vocabulary) * one.sampling.max_new_tokens
        )
        for one in requests
    )


def _mask_bytes(request: GenerateRequest, vocabulary: int) -> int:
    """How long the sampling mask of one token may be. Tokens that are as likely as the k-th count too, so
    that a mask may have more than k.
    """
    if not request.returns_mask:
        return 0
    most = vocabulary if request.sampling.top_k < 1 else min(vocabulary, 4 * request.sampling.top_k)
    return _CANDIDATE_BYTES * min(most, _MOST_CANDIDATES)


def most_score_bytes(sequences: Sequence[NDArray[np.int32]]) -> int:
    """How long the answer to `wire.score_body` may be."""
    return sum(_SAMPLE_BYTES + _TOKEN_BYTES * len(tokens) for tokens in sequences)


def parse_generations(
    raw: bytes, requests: Sequence[GenerateRequest], limits: ModelLimits = NO_LIMITS
) -> list[list[Generation]]:
    """The answer to `wire.generate_body`, by request. BadAnswer where it is not what was asked for."""
    names = [(request, name) for request in requests for name in sample_ids(request)]
    answers = read_json(raw)
    if not isinstance(answers, list) or len(answers) != len(names):
        raise BadAnswer(f"{shape(answers)} where {len(names)} samples were asked for")
    generations = iter(
        [
            _generation(answer, request, name, limits)
            for answer, (request, name) in zip(answers, names, strict=True)
        ]
    )
    return [[next(generations) for _ in request.seeds] for request in requests]


def parse_sample(
    raw: bytes, request: GenerateRequest, number: int, limits: ModelLimits = NO_LIMITS
) -> Generation:
    """The answer to `wire.sample_body`. BadAnswer where it is not what was asked for."""
    answer = read_json(raw)
    if not isinstance(answer, dict):
        raise BadAnswer(f"{shape(answer)} where one sample was asked for")
    return _generation(answer, request, sample_ids(request)[number], limits)


def parse_scores(raw: bytes, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
    """The answer to `wire.score_body`: `[T - 1]` log-probs of each sequence's tokens from the second on.

    BadAnswer where it is not what was asked for.
    """
    answers = read_json(raw)
    answers = answers if isinstance(answers, list) else [answers]
    if len(answers) != len(sequences):
        raise BadAnswer(f"{len(answers)} sequences where log-probs of {len(sequences)} were asked for")
    pairs = zip(answers, sequences, strict=True)
    return [_scores(answer, tokens, f"sequence {k}") for k, (answer, tokens) in enumerate(pairs)]


def check_versions(answers: Sequence[Sequence[Generation]], oldest: int, newest: int | None) -> None:
    """BadAnswer where tokens were made by weights older than those that the engine confirmed before it was
    asked, or newer than it was given; None: it was given none.
    """
    for generation in (one for answer in answers for one in answer):
        for span in generation.versions:
            if span.version < oldest:
                raise BadAnswer(f"tokens of weights {span.version}, although it serves weights {oldest}")
            if newest is not None and span.version > max(oldest, newest):
                raise BadAnswer(f"tokens of weights {span.version}; it was given none after {newest}")


def _generation(answer: Any, request: GenerateRequest, name: str, limits: ModelLimits) -> Generation:
    sample = f"sample {name}"
    answer = table(answer, sample)
    meta = table(answer.get("meta_info"), f"meta_info of {sample}")
    if meta.get("id") != name:
        raise BadAnswer(f"sample {quoted(meta.get('id'))} in the place of {sample}")
    finish = read_finish(meta.get("finish_reason"), sample)
    ids = answer.get("output_ids")
    tokens = read_tokens(ids, limits.vocabulary, sample)
    if len(tokens) > request.sampling.max_new_tokens:
        most = request.sampling.max_new_tokens
        raise BadAnswer(f"{len(tokens)} tokens for {sample}, for which at most {most} were asked")
    if not len(tokens) and finish != "abort":
        raise BadAnswer(f"no token for {sample}, which is said to have ended by {finish!r}")
    values, named = read_columns(meta.get("output_token_logprobs") or [], len(tokens), sample)
    if named != tuple(ids):
        raise BadAnswer(f"log-probs of other tokens than those of {sample}")
    if meta.get("prompt_tokens", len(request.tokens)) != len(request.tokens):
        prompt = quoted(meta["prompt_tokens"])
        raise BadAnswer(f"{sample} after a prompt of {prompt} tokens, not of {len(request.tokens)}")
    log_probs, mask = read_log_probs(values, sample), None
    if request.returns_mask and len(tokens):
        mask, log_probs = read_mask(meta, tokens, limits.vocabulary, sample)
    return Generation(
        tokens,
        log_probs,
        finish,
        read_spans(meta, len(tokens), sample),
        read_cached(meta, len(request.tokens), sample),
        read_experts(meta, len(request.tokens) + len(tokens) - 1, limits.experts, sample)
        if len(tokens)
        else None,
        mask,
    )


def _scores(answer: Any, tokens: NDArray[np.int32], sequence: str) -> NDArray[np.float32]:
    meta = table(table(answer, sequence).get("meta_info"), f"meta_info of {sequence}")
    values, ids = read_columns(meta.get("input_token_logprobs") or [], len(tokens), sequence)
    if ids != tuple(tokens.tolist()):
        raise BadAnswer(f"log-probs of other tokens than those of {sequence}")
    return read_log_probs(values[1:], sequence)
