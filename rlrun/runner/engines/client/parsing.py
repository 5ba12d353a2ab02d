"""Reads engines' answers and checks them on arrival, so that a bad answer is an error of its engine.

    bytes ──▶ JSON ──▶ each sample: token ids, log-probs, masks, versions, experts ──▶ Generation
                            └─▶ BadAnswer: "log-prob 0.7 at token 12 of sample 5-0; …"

The message of a BadAnswer continues the words "engine 0 at URL answered /generate with". Every check is one
numpy or C-level pass over a sample: there is no Python step for each token.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.config_defaults import EXPERT_COUNTS
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import BadAnswer
from rlrun.runner.engines.client.answer_fields import (
    json_object,
    quoted,
    read_cached,
    read_columns,
    read_drafts,
    read_experts,
    read_finish,
    read_json,
    read_listed_tokens,
    read_log_probs,
    read_mask,
    read_packed_tokens,
    read_retractions,
    read_spans,
    read_tokens,
    summary,
)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The bounds that the answers of an engine are checked against, from the model that it serves."""

    vocabulary: int = 2**31
    """Token ids are below this."""
    experts: int | None = None
    """Expert ids are below this, and every answer has them; None: the engine is not asked for experts."""

    @classmethod
    def of(cls, config: Mapping[str, Any], *, experts: bool = False) -> "ModelLimits":
        """Returns the limits of a model with this config.json.

        `experts`: engines are asked which experts tokens were routed to.
        """
        most = next((config[key] for key in EXPERT_COUNTS if config.get(key)), np.iinfo(np.int16).max)
        return cls(config.get("vocab_size", 2**31), int(most) if experts else None)


NO_LIMITS = ModelLimits()
_SAMPLE_BYTES, _TOKEN_BYTES, _EXPERT_BYTES = 1 << 20, 512, 1 << 16
"""Generous limits: a token with its log-prob takes 50 bytes, and 6 for each expert of each layer."""
_PACKED_TOKEN_BYTES = 16
"""A token with its log-prob takes 11 bytes in base64."""
_SUM_TOLERANCE = 1e-2
"""By how much the probabilities of a server that computes in bfloat16 may sum to more than 1."""
_MAX_CANDIDATES = 1 << 18
_CANDIDATE_BYTES = 12
"""A token id of a sampling mask takes up to 8 bytes with its comma."""


def sample_ids(request: GenerateRequest) -> list[str]:
    """Returns the ids of a request's samples on the wire."""
    return [f"{request.id}-{k}" for k in range(len(request.seeds))]


def max_answer_bytes(
    requests: Sequence[GenerateRequest], limits: ModelLimits = NO_LIMITS, *, packed: bool = False
) -> int:
    """Returns how many bytes the answer to `wire.generate_body` may have."""
    token_bytes = _PACKED_TOKEN_BYTES if packed else _TOKEN_BYTES
    token_bytes += 0 if limits.experts is None else _EXPERT_BYTES
    return sum(
        len(request.seeds)
        * (
            _SAMPLE_BYTES
            + token_bytes * (len(request.tokens) + request.sampling.max_new_tokens)
            + _mask_bytes(request, limits.vocabulary) * request.sampling.max_new_tokens
        )
        for request in requests
    )


def _mask_bytes(request: GenerateRequest, vocabulary: int) -> int:
    """Returns how many bytes the sampling mask of one token may have.

    A mask may have more than k tokens, since it includes all that are as likely as the k-th.
    """
    if not request.options.return_sampling_mask:
        return 0
    most = vocabulary if request.sampling.top_k < 1 else min(vocabulary, 4 * request.sampling.top_k)
    return _CANDIDATE_BYTES * min(most, _MAX_CANDIDATES)


def max_score_bytes(sequences: Sequence[NDArray[np.int32]], num_top: int = 0) -> int:
    """Returns how many bytes the answer to `wire.score_body` may have."""
    return sum(_SAMPLE_BYTES + _TOKEN_BYTES * len(tokens) * (1 + num_top) for tokens in sequences)


@dataclass(frozen=True, slots=True)
class TopScores:
    """An engine's scores of the R last tokens of a sequence."""

    log_probs: NDArray[np.float32]
    """`[R]` of the tokens themselves."""
    top_ids: NDArray[np.int32]
    """`[R, k]` the most probable tokens at each position."""
    top_log_probs: NDArray[np.float32]
    """`[R, k]`"""


def parse_generations(
    raw: bytes,
    requests: Sequence[GenerateRequest],
    limits: ModelLimits = NO_LIMITS,
    adapters: int | None = None,
    *,
    packed: bool = False,
) -> list[list[Generation]]:
    """Reads the answer to `wire.generate_body`: the samples of each request.

    `adapters`: the version whose adapters the request named, which made all of its tokens; None: the answer
    says which weights made them. `packed`: tokens and log-probs were asked for as base64. Raises BadAnswer if
    the answer is not what was asked for.
    """
    samples = [(request, sample_id) for request in requests for sample_id in sample_ids(request)]
    answers = read_json(raw)
    if not isinstance(answers, list) or len(answers) != len(samples):
        raise BadAnswer(f"{summary(answers)} where {len(samples)} samples were asked for")
    generations = iter(
        [
            _generation(answer, request, sample_id, limits, adapters, packed=packed)
            for answer, (request, sample_id) in zip(answers, samples, strict=True)
        ]
    )
    return [[next(generations) for _ in request.seeds] for request in requests]


def parse_sample(
    raw: bytes, request: GenerateRequest, number: int, limits: ModelLimits = NO_LIMITS
) -> Generation:
    """Reads the answer to `wire.sample_body`. Raises BadAnswer if it is not what was asked for."""
    answer = read_json(raw)
    if not isinstance(answer, dict):
        raise BadAnswer(f"{summary(answer)} where one sample was asked for")
    return _generation(answer, request, sample_ids(request)[number], limits)


def parse_scores(
    raw: bytes,
    sequences: Sequence[NDArray[np.int32]],
    limits: ModelLimits = NO_LIMITS,
    placeholder: int | None = None,
) -> list[NDArray[np.float32]]:
    """Reads the answer to `wire.score_body`: log-probs `[T - 1]` of each sequence's tokens from the second
    on. `placeholder`: the token of images, if the sequences have some.

    Raises BadAnswer if it is not what was asked for.
    """
    pairs = zip(_score_answers(raw, len(sequences)), sequences, strict=True)
    # SGLang names the last token of the vocabulary and the placeholders of images 0, beside their right
    # log-probs (managers/scheduler_components/logprob_result_processor.py).
    named_zero = {limits.vocabulary - 1, placeholder}
    return [_scores(answer, tokens, f"sequence {k}", named_zero) for k, (answer, tokens) in enumerate(pairs)]


def parse_top_scores(
    raw: bytes,
    sequences: Sequence[NDArray[np.int32]],
    starts: Sequence[int],
    num_top: int,
    limits: ModelLimits = NO_LIMITS,
) -> list[TopScores]:
    """Reads the answer to `wire.score_body` with `starts` and `num_top`: scores of each sequence's tokens
    after its start.

    Raises BadAnswer if it is not what was asked for.
    """
    triples = zip(_score_answers(raw, len(sequences)), sequences, starts, strict=True)
    return [
        _top_scores(answer, tokens[start:], num_top, limits.vocabulary, f"sequence {number}")
        for number, (answer, tokens, start) in enumerate(triples)
    ]


def _score_answers(raw: bytes, count: int) -> list[Any]:
    """Returns the answer about each of `count` sequences."""
    answers = read_json(raw)
    answers = answers if isinstance(answers, list) else [answers]
    if len(answers) != count:
        raise BadAnswer(f"{len(answers)} sequences where log-probs of {count} were asked for")
    return answers


def _top_scores(
    answer: Any, tokens: NDArray[np.int32], num_top: int, vocabulary: int, sequence: str
) -> TopScores:
    """Reads the scores of all tokens but the first."""
    log_probs = _scores(answer, tokens, sequence, {vocabulary - 1, None})
    rows = answer["meta_info"].get("input_top_logprobs")
    if not isinstance(rows, list) or len(rows) != len(tokens):
        raise BadAnswer(f"no most probable tokens for each of the {len(tokens)} tokens of {sequence}")
    for position, row in enumerate(rows[1:], 1):
        if not isinstance(row, list) or len(row) != num_top:
            found = len(row) if isinstance(row, list) else quoted(row)
            raise BadAnswer(f"{found} most probable tokens at {position} of {sequence} instead of {num_top}")
    entries = [entry for row in rows[1:] for entry in row]
    values, ids = read_columns(entries, len(entries), sequence)
    shape = len(tokens) - 1, num_top
    top_ids = read_tokens(list(ids), vocabulary, sequence).reshape(shape)
    top_log_probs = read_log_probs(values, sequence).reshape(shape)
    _check_top(top_ids, top_log_probs, sequence)
    return TopScores(log_probs, top_ids, top_log_probs)


def _check_top(ids: NDArray[np.int32], log_probs: NDArray[np.float32], sequence: str) -> None:
    """Raises BadAnswer if a position has a token twice, or probabilities that sum to more than 1."""
    ordered = np.sort(ids, 1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise BadAnswer(f"one of the most probable tokens of {sequence} twice at one position")
    most = np.exp(log_probs.astype(np.float64)).sum(1).max(initial=0.0)
    if most > 1 + _SUM_TOLERANCE:
        raise BadAnswer(f"most probable tokens of {sequence} whose probabilities sum to {most:.4g}")


def check_versions(
    answers: Sequence[Sequence[Generation]], oldest: int, newest: int | None, given: Container[int]
) -> None:
    """Raises BadAnswer if tokens claim weights that the engine cannot have served.

    `oldest`: the version that it had confirmed before the request was sent. `newest`: the last version that
    it was given; None where that is unknown. `given`: every version that it was given.
    """
    for generation in (generation for answer in answers for generation in answer):
        for span in generation.versions:
            if span.version < oldest:
                raise BadAnswer(f"tokens of weights {span.version}, although it serves weights {oldest}")
            if newest is not None and span.version > max(oldest, newest):
                raise BadAnswer(
                    f"tokens of weights {span.version}, although it was given none after {newest}"
                )
            if newest is not None and span.version not in given:
                raise BadAnswer(f"tokens of weights {span.version}, which it was never given")


def _generation(
    answer: Any,
    request: GenerateRequest,
    sample_id: str,
    limits: ModelLimits,
    adapters: int | None = None,
    *,
    packed: bool = False,
) -> Generation:
    sample = f"sample {sample_id}"
    answer = json_object(answer, sample)
    meta = json_object(answer.get("meta_info"), f"meta_info of {sample}")
    if meta.get("id") != sample_id:
        raise BadAnswer(f"sample {quoted(meta.get('id'))} instead of {sample}")
    finish = read_finish(meta.get("finish_reason"), sample)
    read = read_packed_tokens if packed else read_listed_tokens
    tokens, log_probs = read(answer, meta, limits.vocabulary, sample)
    if len(tokens) > request.sampling.max_new_tokens:
        limit = request.sampling.max_new_tokens
        raise BadAnswer(f"{len(tokens)} tokens for {sample}, although at most {limit} were asked for")
    if not len(tokens) and finish != "abort":
        raise BadAnswer(f"no tokens for {sample}, although its finish_reason is {finish!r}")
    if meta.get("prompt_tokens", len(request.tokens)) != len(request.tokens):
        prompt = quoted(meta["prompt_tokens"])
        raise BadAnswer(f"{sample} after a prompt of {prompt} tokens instead of {len(request.tokens)}")
    spans = read_spans(meta, len(tokens), sample) if adapters is None else _whole_span(adapters, len(tokens))
    mask = None
    if request.options.return_sampling_mask and len(tokens):
        mask, log_probs = read_mask(meta, tokens, limits.vocabulary, sample)
    return Generation(
        tokens,
        log_probs,
        finish,
        spans,
        read_cached(meta, len(request.tokens), sample),
        read_experts(meta, len(request.tokens) + len(tokens) - 1, limits.experts, sample)
        if len(tokens)
        else None,
        mask,
        read_retractions(meta, len(spans), sample),
        *read_drafts(meta, sample),
    )


def _whole_span(version: int, length: int) -> tuple[VersionSpan, ...]:
    """Returns the one span of a sample that was made by one version."""
    return (VersionSpan(version, 0, length),) if length else ()


def _scores(
    answer: Any, tokens: NDArray[np.int32], sequence: str, named_zero: set[int | None]
) -> NDArray[np.float32]:
    meta = json_object(json_object(answer, sequence).get("meta_info"), f"meta_info of {sequence}")
    values, ids = read_columns(meta.get("input_token_logprobs") or [], len(tokens), sequence)
    expected = tokens.tolist()
    if ids != tuple(expected):
        _check_scored_tokens(ids, expected, sequence, named_zero)
    return read_log_probs(values[1:], sequence)


def _check_scored_tokens(
    ids: Sequence[Any], expected: list[int], sequence: str, named_zero: set[int | None]
) -> None:
    """Raises BadAnswer if the answer names other tokens than the sequence's; it may name some of them 0."""
    for position, (token, sent) in enumerate(zip(ids, expected, strict=True)):
        if token != sent and not (token == 0 and sent in named_zero):
            raise BadAnswer(
                f"log-probs of other tokens than those of {sequence}: {quoted(token)} at {position} "
                f"instead of {sent}"
            )
