"""A request that is sent in several parts: which samples are unfinished, and how their parts are joined.

An unfinished sample is continued by a request whose input is the prompt and the tokens made so far, with the
remaining token budget. Its seed does not change: engines hash it with a token's absolute position, so no
random number is used twice.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.sampling_mask import joined_masks
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.records.encoded_arrays import (
    FLOAT_DTYPE,
    INT_DTYPE,
    decode_array,
    decode_experts,
    decode_mask,
    encode_array,
    encode_experts,
    encode_mask,
)

Tokens = NDArray[np.int32]
Decode = Callable[[Sequence[Tokens]], Sequence[str]]
"""Returns the texts of token sequences, special tokens included."""

_TEXTLESS_TOKENS = 8
"""How many tokens within a stop string may decode to nothing; every other one has at least a byte."""


@dataclass(eq=False, slots=True)
class ResumableRequest:
    """A request with the generations made for it so far."""

    request: GenerateRequest
    generations: list[Generation]
    """One per sample; `finish` is "abort" where the sample is unfinished."""
    resumed: asyncio.Future[None] = field(init=False)
    """While the request is parked: done when it may continue."""
    is_late: bool = False
    """The deadline has passed: the request returns what it has."""

    @property
    def key(self) -> str:
        """Returns a key that equal requests of all processes share: the id, and a hash of the content."""
        digests = "".join(placed.image.digest for placed in self.request.images)
        content = self.request.tokens.tobytes() + digests.encode()
        return f"{self.request.id}/{blake2b(content, digest_size=8).hexdigest()}"

    def end_at_limit(self) -> None:
        """Ends samples that reached the token limit, which may be lower in a resumed job than before."""
        limit = self.request.sampling.max_new_tokens
        for sample, generation in enumerate(self.generations):
            length = len(generation.tokens)
            if length > limit or (generation.finish == "abort" and length == limit):
                truncated = truncate(generation, limit, len(self.request.tokens))
                self.generations[sample] = replace(truncated, finish="length")

    def next_requests(self) -> list[tuple[list[int], GenerateRequest]]:
        """Returns the requests that finish the samples, each with the numbers of its samples.

        Samples without a token share one request; every other one is continued by its own.
        """
        unfinished = [n for n, generation in enumerate(self.generations) if generation.finish == "abort"]
        new = [sample for sample in unfinished if not len(self.generations[sample].tokens)]
        begun = [sample for sample in unfinished if len(self.generations[sample].tokens)]
        requests = [(new, self._first_request(new))] if new else []
        return requests + [([sample], self._continuation(sample)) for sample in begun]

    def append(self, sample: int, part: Generation, decode: Decode) -> None:
        """Appends a part to a sample, up to a stop string that begins in the tokens before it."""
        before = self.generations[sample]
        generation = join(before, part)
        end = stop_string_end(generation.tokens, len(before.tokens), self.request.sampling, decode)
        if end is not None:
            generation = truncate(generation, end, len(self.request.tokens))
        self.generations[sample] = generation

    def _first_request(self, samples: Sequence[int]) -> GenerateRequest:
        if len(samples) == len(self.generations):
            return self.request
        return replace(self.request, seeds=tuple(self.request.seeds[sample] for sample in samples))

    def _continuation(self, sample: int) -> GenerateRequest:
        request, tokens = self.request, self.generations[sample].tokens
        return replace(
            request,
            id=f"{request.id}-{sample}",
            tokens=np.concatenate([request.tokens, tokens]),
            seeds=(request.seeds[sample],),
            sampling=request.sampling.after(len(tokens)),
        )


def join(first: Generation, second: Generation) -> Generation:
    """Returns two parts of a sample as one; adjacent spans of the same version are merged."""
    if not len(first.tokens):
        return second
    spans, length = list(first.versions), len(first.tokens)
    for span in second.versions:
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=length + span.end)
        else:
            spans.append(VersionSpan(span.version, length + span.start, length + span.end))
    # `second` has the experts of all tokens: the earlier ones were part of its input.
    return replace(
        second,
        tokens=np.concatenate([first.tokens, second.tokens]),
        log_probs=np.concatenate([first.log_probs, second.log_probs]),
        versions=tuple(spans),
        cached_tokens=first.cached_tokens,
        retractions=first.retractions + second.retractions,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        passes=first.passes + second.passes,
        sampling_mask=joined_masks([first.sampling_mask, second.sampling_mask], [length, len(second.tokens)]),
    )


def truncate(generation: Generation, length: int, prompt_length: int) -> Generation:
    """Returns the first `length` tokens of a generation, as if a stop string had ended it there."""
    spans = (replace(span, end=min(span.end, length)) for span in generation.versions if span.start < length)
    experts, mask = generation.experts, generation.sampling_mask
    return replace(
        generation,
        tokens=generation.tokens[:length],
        log_probs=generation.log_probs[:length],
        finish="stop",
        versions=tuple(spans),
        experts=None if experts is None else experts[: prompt_length + length - 1],
        sampling_mask=None if mask is None else mask.part(0, length),
    )


def stop_string_end(tokens: Tokens, part_start: int, sampling: Sampling, decode: Decode) -> int | None:
    """Returns the number of tokens up to the end of a stop string that begins before `part_start`.

    Engines search for stop strings only in the tokens that they generate themselves, so they miss one that
    begins in an earlier part. None if there is no such stop string. As in engines, it may end before
    `min_new_tokens`.
    """
    if not sampling.stop or not 0 < part_start < len(tokens):
        return None
    reach = max(len(stop.encode()) for stop in sampling.stop) + _TEXTLESS_TOKENS
    ends = range(part_start + 1, min(len(tokens), part_start + reach) + 1)
    texts = decode([tokens[max(0, end - reach) : end] for end in ends])
    for end, text in zip(ends, texts, strict=True):
        if any(stop in text for stop in sampling.stop):
            return end
    return None


def record_of(generation: Generation) -> dict[str, Any]:
    """Returns a generation as JSON values."""
    return {
        "tokens": encode_array(generation.tokens, INT_DTYPE),
        "log_probs": encode_array(generation.log_probs, FLOAT_DTYPE),
        "finish": generation.finish,
        "versions": [[span.version, span.start, span.end] for span in generation.versions],
        "cached": generation.cached_tokens,
        "experts": encode_experts(generation.experts),
        "sampling_mask": encode_mask(generation.sampling_mask),
        "retractions": generation.retractions,
        "drafts": [generation.drafted, generation.accepted, generation.passes],
    }


def generation_of(record: Mapping[str, Any]) -> Generation:
    """Returns the generation that `record_of` wrote, bit for bit."""
    return Generation(
        decode_array(record["tokens"], INT_DTYPE),
        decode_array(record["log_probs"], FLOAT_DTYPE),
        record["finish"],
        tuple(VersionSpan(*span) for span in record["versions"]),
        record["cached"],
        decode_experts(record["experts"]),
        decode_mask(record.get("sampling_mask")),
        record.get("retractions", 0),
        *record.get("drafts", ()),
    )
