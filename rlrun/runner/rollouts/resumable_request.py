"""A request and what was made of it: what is left to be asked, how parts of a sample join, how it is kept.

A sample that goes on sends its prompt and its tokens as input, and the budget that is left. Its seed stays:
engines hash it with a token's absolute position, so no random number is used twice.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from rlrun.plugins.generation import Generation
from rlrun.plugins.sampling_mask import joined_masks
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.records.saved_rollouts import (
    FLOATS,
    INTS,
    array_of,
    experts_of,
    experts_text,
    mask_of,
    mask_text,
    text_of,
)
from rlrun.runner.rollouts.stop_strings import Decode, end_across

_PROMPT = re.compile(r"rollout-(\d+)")


@dataclass(eq=False, slots=True)
class ResumableRequest:
    """A request, and what has been made of it."""

    request: GenerateRequest
    made: list[Generation]
    """One for each sample; `finish` is "abort" where it is to go on."""
    go: asyncio.Future[None] = field(init=False)
    """While it is parked: set when it may go on."""
    late: bool = False
    """It is to answer with what it has."""

    @property
    def key(self) -> str:
        """The same for the same question, in another process too."""
        return f"{self.request.id}/{blake2b(self.request.tokens.tobytes(), digest_size=8).hexdigest()}"

    def end_at_limit(self) -> None:
        """Ends samples that have all tokens that they may have: a resumed job may allow fewer than before."""
        most = self.request.sampling.max_new_tokens
        for place, made in enumerate(self.made):
            if len(made.tokens) > most or (made.finish == "abort" and len(made.tokens) == most):
                self.made[place] = replace(ended_at(made, most, len(self.request.tokens)), finish="length")

    def rounds(self) -> list[tuple[list[int], GenerateRequest]]:
        """What is still to be asked, and which samples it is of; those without a token together."""
        fresh = [
            place for place, made in enumerate(self.made) if made.finish == "abort" and not len(made.tokens)
        ]
        others = [
            place for place, made in enumerate(self.made) if made.finish == "abort" and len(made.tokens)
        ]
        parts = [(fresh, self._first(fresh))] if fresh else []
        return parts + [([place], self._rest(place)) for place in others]

    def add(self, place: int, made: Generation, decode: Decode) -> None:
        """Append to a sample, up to a stop string that began in its earlier part."""
        begun, whole = len(self.made[place].tokens), joined(self.made[place], made)
        end = end_across(whole.tokens, begun, self.request.sampling, decode)
        prompt = len(self.request.tokens)
        self.made[place] = whole if end is None else ended_at(whole, end, prompt)

    def _first(self, places: Sequence[int]) -> GenerateRequest:
        if len(places) == len(self.made):
            return self.request
        return replace(self.request, seeds=tuple(self.request.seeds[place] for place in places))

    def _rest(self, place: int) -> GenerateRequest:
        request, done = self.request, self.made[place].tokens
        sampling = replace(
            request.sampling,
            max_new_tokens=request.sampling.max_new_tokens - len(done),
            min_new_tokens=max(0, request.sampling.min_new_tokens - len(done)),
        )
        return replace(
            request,
            id=f"{request.id}-{place}",
            tokens=np.concatenate([request.tokens, done]),
            seeds=(request.seeds[place],),
            sampling=sampling,
        )


def prompt_of(request_id: str) -> int:
    """The prompt that a request is about; rlrun.runner.rollouts.sessions names it `<purpose>-<prompt>…`."""
    found = _PROMPT.match(request_id)
    assert found is not None, f"request {request_id!r} names no prompt"
    return int(found[1])


def joined(first: Generation, second: Generation) -> Generation:
    """A sample of two parts; neighbouring spans of the same version are one."""
    if not len(first.tokens):
        return second
    spans, length = list(first.versions), len(first.tokens)
    for span in second.versions:
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=length + span.end)
        else:
            spans.append(VersionSpan(span.version, length + span.start, length + span.end))
    return replace(
        second,
        tokens=np.concatenate([first.tokens, second.tokens]),
        log_probs=np.concatenate([first.log_probs, second.log_probs]),
        versions=tuple(spans),
        cached_tokens=first.cached_tokens,
        sampling_mask=joined_masks([first.sampling_mask, second.sampling_mask], [length, len(second.tokens)]),
    )


def ended_at(made: Generation, end: int, prompt: int) -> Generation:
    """The first `end` tokens of an answer to `prompt` tokens, as if a stop string had ended it there."""
    spans = (replace(span, end=min(span.end, end)) for span in made.versions if span.start < end)
    return replace(
        made,
        tokens=made.tokens[:end],
        log_probs=made.log_probs[:end],
        finish="stop",
        versions=tuple(spans),
        experts=None if made.experts is None else made.experts[: prompt + end - 1],
        sampling_mask=None if made.sampling_mask is None else made.sampling_mask.part(0, end),
    )


def record_of(made: Generation) -> dict[str, Any]:
    """As JSON values."""
    return {
        "tokens": text_of(made.tokens, INTS),
        "log_probs": text_of(made.log_probs, FLOATS),
        "finish": made.finish,
        "versions": [[span.version, span.start, span.end] for span in made.versions],
        "cached": made.cached_tokens,
        "experts": experts_text(made.experts),
        "sampling_mask": mask_text(made.sampling_mask),
    }


def generation_of(record: Mapping[str, Any]) -> Generation:
    """Of a record, to the bit."""
    return Generation(
        array_of(record["tokens"], INTS),
        array_of(record["log_probs"], FLOATS),
        record["finish"],
        tuple(VersionSpan(*span) for span in record["versions"]),
        record["cached"],
        experts_of(record["experts"]),
        mask_of(record.get("sampling_mask")),
    )
