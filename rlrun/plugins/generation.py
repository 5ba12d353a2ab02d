"""What a rollout asks of the policy, what it is given, and the training sample it makes of that.

Sampling ──▶ session.generate ──▶ Generation ──▶ Trajectory ──▶ (by the framework) Sample
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.plugins.types import Status, VersionSpan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]
    FloatArray = NDArray[np.float32]
else:
    from rlrun.plugins import lazy_numpy as np

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine draws tokens; SGLang's `sampling_params`."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    @property
    def cuts_vocabulary(self) -> bool:
        """Tokens are drawn from a part of the vocabulary."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of an engine."""

    tokens: Tokens
    """`[R]`, the stop token included."""
    log_probs: FloatArray
    """`[R]` at the sampling temperature: over the whole vocabulary, or over `sampling_mask` where there is
    one."""
    finish: Literal["stop", "length", "abort"]
    versions: tuple[VersionSpan, ...]
    cached_tokens: int = 0
    """Prompt tokens whose prefill was shared or cached."""
    experts: NDArray[np.int16] | None = None
    """`[P + R - 1, layers × K]` the experts each token went to, those of this answer's own prompt included;
    None unless the engine was asked."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each of the R was drawn from; None unless the engine was asked."""

    @property
    def status(self) -> Status:
        """What becomes of a sample that ends with this answer."""
        return _STATUS[self.finish]


@dataclass(slots=True)
class Trajectory:
    """A training sample in the making, token by token: what the policy made, and what it was given between.

    Tokens, log-probs, mask and versions grow together in `add` and `give` and nowhere else, so they cannot
    drift apart. What is given after the policy's last token is no part of the sample.
    """

    prompt: Tokens
    """`[P]`, at least 1: what the policy saw before its first token."""
    status: Status = Status.COMPLETED
    """How it ended; `add` sets it by the finish of what it adds."""
    text: str | None = None
    """What rewards read. None: the policy's own tokens decoded, a line break between its turns."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values for rewards and for the record; numbers are averaged as `rollout/info/<name>`."""
    failure: str | None = None
    """Why `status` is failed, where it is."""
    turns: list[Generation] = field(default_factory=list, init=False)
    """The policy's answers, in order; `add` appends them."""
    _parts: list[Generation | Tokens] = field(default_factory=list, init=False)
    _added: int = field(default=0, init=False)

    def add(self, made: Generation) -> None:
        """Append what the policy made; an empty answer is only how it ended."""
        if len(made.tokens):
            self._parts.append(made)
            self.turns.append(made)
            self._added += len(made.tokens)
        self.status = made.status

    def give(self, tokens: Sequence[int] | Tokens) -> None:
        """Append what the policy did not make (a tool's answer, the next question): it is not trained.

        Before the policy's first token it belongs to the prompt.
        """
        given = np.asarray(tokens, dtype=np.int32)
        if self._parts:
            self._parts.append(given)
            self._added += len(given)
        else:
            self.prompt = np.concatenate([self.prompt, given])

    def __len__(self) -> int:
        """Tokens so far, the prompt's included."""
        return len(self.prompt) + self._added

    def tokens(self) -> Tokens:
        """`[P + …]` all tokens so far: what the policy is asked to go on from."""
        return np.concatenate([self.prompt, *map(_tokens, self._parts)])

    def sample_length(self) -> int:
        """`P + R`: tokens of the sample."""
        return len(self.prompt) + len(self.response()[0])

    def experts(self) -> NDArray[np.int16] | None:
        """`[P + R - 1, layers × K]` as the last answer has them: its prompt is all that came before."""
        turns = self.turns
        if not turns or turns[-1].experts is None:
            return None
        found = turns[-1].experts
        assert len(found) == self.sample_length() - 1, "experts of other tokens than the sample's"
        return found

    def sampling_mask(self) -> SamplingMask | None:
        """The candidates of the R tokens of `response`; None where no answer has any."""
        parts = self._response_parts()
        masks = [part.sampling_mask if isinstance(part, Generation) else None for part in parts]
        return joined_masks(masks, [len(_tokens(part)) for part in parts])

    def response(self) -> tuple[Tokens, FloatArray, FloatArray, tuple[VersionSpan, ...]]:
        """`[R]` tokens, log-probs (0 where the policy made none), loss mask; and which weights made what.

        The versions cover `[0, R)`: what was given counts to the answer after it.
        """
        if len(self.turns) == 1:
            [made] = self.turns
            return made.tokens, made.log_probs, np.ones(len(made.tokens), dtype=np.float32), made.versions
        parts = self._response_parts()
        none = np.zeros(0, dtype=np.float32)
        log_probs, masks = [none], [none]
        for part in parts:
            own = isinstance(part, Generation)
            length = len(_tokens(part))
            log_probs.append(part.log_probs if isinstance(part, Generation) else _zeros(length))
            masks.append(np.ones(length, dtype=np.float32) if own else _zeros(length))
        tokens = [np.zeros(0, dtype=np.int32), *map(_tokens, parts)]
        return np.concatenate(tokens), np.concatenate(log_probs), np.concatenate(masks), _spans(parts)

    def _response_parts(self) -> list[Generation | Tokens]:
        """What was made and given, up to the policy's last token."""
        parts = list(self._parts)
        while parts and not isinstance(parts[-1], Generation):
            parts.pop()
        return parts


def _spans(parts: Sequence[Generation | Tokens]) -> tuple[VersionSpan, ...]:
    """One after the other without gaps; neighbours of the same version are one."""
    spans: list[VersionSpan] = []
    start = place = 0
    for part in parts:
        for span in part.versions if isinstance(part, Generation) else ():
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(span.version, start, place + span.end))
            start = place + span.end
        place += len(_tokens(part))
    return tuple(spans)


def _tokens(part: Generation | Tokens) -> Tokens:
    return part.tokens if isinstance(part, Generation) else part


def _zeros(length: int) -> FloatArray:
    return np.zeros(length, dtype=np.float32)
