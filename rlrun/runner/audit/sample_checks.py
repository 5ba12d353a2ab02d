"""Checks of single samples: their form, tokens, masks, log-probs and endings."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Status
from rlrun.runner.audit.audited_run import AuditedRun, Batch
from rlrun.runner.audit.stored_sample import StoredSample
from rlrun.runner.audit.violation import NotChecked, Result, Violation

LEAST_LOG_PROB = -50.0
"""No token of a smaller log-prob is drawn: e^-50 is 2e-22, and a run generates fewer tokens than 1e15."""
FLOAT_NOISE = 1e-4
"""How far above 0 rounding may lift a log-prob."""
TURN_BY_TURN = ("multi_turn_tools", "environment", "agent")
"""Rollouts whose conversations have tokens that the policy did not generate."""


def readable(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Every line is a sample."""
    for place, problem in batch.problems:
        yield Violation(problem, batch.step, file=place)
    yield from (None for _ in batch.samples)


def lengths(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The numbers of tokens that a record states are those of its arrays."""
    for stored in _with_tokens(batch):
        sample, trained = stored.sample, int(stored.sample.loss_mask.sum())
        if stored.tokens != len(sample.tokens):
            yield batch.violation(stored, f"it says {stored.tokens} tokens and has {len(sample.tokens)}")
        elif stored.trained_tokens != trained:
            message = f"it says {stored.trained_tokens} trained tokens, and its loss mask has {trained}"
            yield batch.violation(stored, message)
        else:
            yield None


def known_tokens(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Every token is one of the model's vocabulary."""
    for stored in _with_tokens(batch):
        tokens = np.concatenate([stored.sample.prompt.tokens, stored.sample.tokens])
        wrong = tokens[(tokens < 0) | (tokens >= run.vocabulary_size)]
        if len(wrong):
            message = f"token {wrong[0]} is not one of the model's {run.vocabulary_size}"
            yield batch.violation(stored, message)
        else:
            yield None


def decoded(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The text that rewards read is what the policy's tokens decode to."""
    chosen = [stored for stored in _with_tokens(batch) if _has_own_text(run, stored)]
    spans = [_spans(stored) for stored in chosen]
    flat = [
        stored.sample.tokens[start:end]
        for stored, own in zip(chosen, spans, strict=True)
        for start, end in own
    ]
    if any((tokens < 0).any() or (tokens >= run.vocabulary_size).any() for tokens in flat):
        raise NotChecked("some tokens are not in the vocabulary")
    texts = iter(run.tokenizer.decode_batch(flat))
    for stored, own in zip(chosen, spans, strict=True):
        text = "\n".join(next(texts) for _ in own)
        stored_text = stored.sample.text
        if not run.needs.rollout:
            agrees = stored_text.strip() in text
        else:
            agrees = stored_text.replace("\n", "") == text.replace("\n", "")
        if agrees:
            yield None
        else:
            yield batch.violation(
                stored, f"its tokens decode to {_quote(text)}, the response is {_quote(stored_text)}"
            )
    if len(chosen) < len(_with_tokens(batch)):
        raise NotChecked("the text of some samples is their rollout's, or some of their tokens are masked")


def ended(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """A completed response ends with its only end token or a stop string; a truncated one is full."""
    for stored in _generated_once(run, batch):
        sample, settings = stored.sample, run.settings(stored)
        room = min(settings.max_turn_tokens, settings.sampling.max_new_tokens)
        if stored.has_prompt:
            room = min(room, settings.max_sample_tokens - len(sample.prompt.tokens))
        ends = np.isin(sample.tokens, [*run.tokenizer.eos_token_ids, *settings.sampling.stop_token_ids])
        stopped = any(text in run.tokenizer.decode(sample.tokens) for text in settings.sampling.stop)
        if len(sample.tokens) > room:
            message = f"it has {len(sample.tokens)} tokens, at most {room} are allowed"
        elif ends[:-1].any():
            message = (
                f"token {int(ends.argmax())} ends a response, and {len(ends) - 1 - int(ends.argmax())} follow"
            )
        elif sample.status is Status.TRUNCATED and (len(sample.tokens) < room or ends[-1:].any()):
            message = f"it is truncated, has {len(sample.tokens)} of {room} tokens"
            message += " and ends with an end token" if ends[-1:].any() else ""
        elif sample.status is Status.COMPLETED and not (ends[-1:].any() or stopped):
            message = "it is completed, but ends with no end token or stop string"
        elif sample.status is Status.COMPLETED and len(sample.tokens) < settings.sampling.min_new_tokens:
            message = f"it has {len(sample.tokens)} tokens, fewer than {settings.sampling.min_new_tokens}"
        else:
            message = ""
        yield batch.violation(stored, message) if message else None


def within_limits(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Prompts and responses are no longer than the spec allows."""
    for stored in batch.samples:
        settings, prompt = run.settings(stored), len(stored.sample.prompt.tokens)
        limit = settings.max_sample_tokens - settings.sampling.max_new_tokens
        several = (
            run.rollout_function(stored).type not in ("single_turn", "multi_turn_tools")
            or not run.needs.rollout
        )
        longest = settings.max_sample_tokens if several else settings.sampling.max_new_tokens
        if prompt > (settings.max_sample_tokens if several else limit):
            yield batch.violation(stored, f"its prompt has {prompt} tokens, at most {limit} are allowed")
        elif stored.tokens > longest:
            yield batch.violation(stored, f"it has {stored.tokens} tokens, at most {longest} are allowed")
        else:
            yield None


def masks(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The loss mask is 1 on all tokens that the policy generated, unless the spec masks them, else 0."""
    for stored in _with_tokens(batch):
        mask = stored.sample.loss_mask
        if not np.isin(mask, (0.0, 1.0)).all():
            value = mask[~np.isin(mask, (0.0, 1.0))][0]
            yield batch.violation(stored, f"its loss mask has the value {value:g}")
        elif not run.needs.rollout or not stored.sample.status.is_finished:
            yield None
        else:
            message = _mask_problem(run, stored)
            yield batch.violation(stored, message) if message else None


def _mask_problem(run: AuditedRun, stored: StoredSample) -> str:
    sample, kind = stored.sample, run.rollout_function(stored).type
    mask = sample.loss_mask
    if kind == "single_turn" and not _is_masked_by_spec(run, stored) and not mask.all():
        count = int((mask == 0).sum())
        return (
            f"{count} of its {len(mask)} tokens are not trained on, though the policy generated all of them"
        )
    if kind in TURN_BY_TURN:
        ends = np.isin(sample.tokens, run.tokenizer.eos_token_ids)
        inside = ends[:-1] & (mask[:-1] > 0) & (mask[1:] > 0)
        if inside.any():
            return (
                f"the tokens after end token {int(inside.argmax())} are trained on: they are not the policy's"
            )
        given = (mask > 0) & (sample.log_probs == 0)
        if sample.sampling_mask is not None and (given & (sample.sampling_mask.lengths == 0)).any():
            return "it trains on tokens that no engine drew"
    if (
        kind in ("multi_turn_tools", "environment")
        and stored.is_masked
        and not _is_masked_by_spec(run, stored)
    ):
        count = int(((mask == 0) & (sample.log_probs != 0)).sum())
        return f"{count} tokens that the policy generated are not trained on"
    return ""


def _is_masked_by_spec(run: AuditedRun, stored: StoredSample) -> bool:
    """Returns whether a filter, or a setting of the spec, may have masked tokens of a sample."""
    rollout, truncated = run.spec.rollout, stored.sample.status is Status.TRUNCATED
    return (
        bool(stored.sample.verdicts)
        or (rollout.truncated == "mask" and truncated)
        or (rollout.mask_off_policy and len(stored.sample.versions) > 0)
    )


def log_probs(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Log-probs are finite, and those of a probability that a token can be drawn with."""
    for stored in _with_tokens(batch):
        values = [stored.sample.log_probs]
        values += [] if stored.sample.policy_log_probs is None else [stored.sample.policy_log_probs]
        message = ""
        for array in values:
            least = -math.inf if run.settings(stored).sampling.temperature == 0 else LEAST_LOG_PROB
            wrong = ~np.isfinite(array) | (array > FLOAT_NOISE) | (array < least)
            if wrong.any() and not message:
                message = f"the log-prob of token {int(wrong.argmax())} is {array[wrong.argmax()]:.6g}"
        yield batch.violation(stored, message) if message else None


def turn_rewards(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Turns with rewards end one after another, in the response; environments note the sum of the rewards."""
    for stored in batch.samples:
        turns, noted = stored.sample.turn_rewards, stored.sample.info.get("reward")
        ends, total = [turn.end for turn in turns], sum(turn.reward for turn in turns)
        message = ""
        if turns and ([0, *ends] != sorted({0, *ends}) or ends[-1] > stored.tokens):
            message = f"its turns end at {ends}, and it has {stored.tokens} tokens"
        elif not math.isfinite(total):
            message = "a reward of its turns is not a number"
        elif turns and run.rollout_function(stored).type == "environment" and not _are_close(total, noted):
            message = f"the rewards of its turns add up to {total:g}, and its environment's reward is {noted}"
        yield batch.violation(stored, message) if message else None


def _are_close(total: float, noted: Any) -> bool:
    return isinstance(noted, int | float) and math.isclose(total, noted, rel_tol=1e-9, abs_tol=1e-9)


def _with_tokens(batch: Batch) -> list[StoredSample]:
    return [stored for stored in batch.samples if stored.has_tokens]


def _generated_once(run: AuditedRun, batch: Batch) -> list[StoredSample]:
    """Returns the finished samples that are one answer of an engine, with their tokens."""
    if not run.needs.rollout:
        raise NotChecked("the responses are those of the data")
    return [
        stored
        for stored in _with_tokens(batch)
        if run.rollout_function(stored).type == "single_turn" and stored.sample.status.is_finished
    ]


def _has_own_text(run: AuditedRun, stored: StoredSample) -> bool:
    """Returns whether the framework decoded a sample's text, from tokens that its arrays tell apart."""
    if not run.needs.rollout:
        return True
    function = run.rollout_function(stored)
    if not stored.sample.status.is_finished:
        return False
    if function.type == "single_turn":
        return True
    last_only = function.params.get("text") == "last"
    return (
        function.type in TURN_BY_TURN and not last_only and not stored.is_masked and stored.trained_tokens > 0
    )


def _spans(stored: StoredSample) -> list[tuple[int, int]]:
    """Returns the (start, end) of each run of trained tokens; of all tokens where they are not told apart."""
    mask = stored.sample.loss_mask > 0
    if mask.all() or not mask.any() or not len(stored.sample.versions):
        return [(0, len(mask))]
    if len(mask) == stored.tokens and stored.is_masked:
        return [(0, len(mask))]
    return _runs(mask)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
