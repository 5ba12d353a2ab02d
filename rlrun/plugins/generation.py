"""What a rollout asks of the policy, what it receives, and the training sample that it makes from the
answers.

Sampling ──▶ session.generate ──▶ Generation ──▶ Trajectory ──▶ (by the framework) Sample
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlrun.plugins.failures import Failure
from rlrun.plugins.images import PlacedImage
from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.plugins.types import Status, TurnReward, VersionSpan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]
    Weights = float | Sequence[float] | NDArray[np.floating[Any]]
    FloatArray = NDArray[np.float32]
else:
    from rlrun.plugins import lazy_numpy as np

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine draws the tokens of an answer.

    The same settings travel from the spec to the engine's request. The fields are those of SGLang's
    `sampling_params`: the engine client sends all of them, and the native engine reads all of them.

    Example: `Sampling(max_new_tokens=1024, temperature=0.7, stop=("</answer>",))`
    """

    max_new_tokens: int
    """Maximum length of the answer in tokens. In a session's settings it limits all answers of the execution
    together (`rollout.max_response_tokens`)."""
    temperature: float = 1.0
    """0 always takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: no limit."""
    min_new_tokens: int = 0
    """Stop tokens cannot be drawn before this many tokens (`rollout.min_response_tokens`)."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop tokens in addition to the model's end-of-sequence tokens."""

    @property
    def cuts_vocabulary(self) -> bool:
        """Whether tokens are drawn from a part of the vocabulary only."""
        return self.top_p < 1 or self.top_k > 0

    def limited(self, room: int) -> Sampling:
        """Returns these settings for an answer of at most `room` tokens.

        A minimum above the limit is lowered to it, since late turns may have less room than the minimum.
        """
        longest = min(self.max_new_tokens, room)
        shortest = min(self.min_new_tokens, longest)
        if (longest, shortest) == (self.max_new_tokens, self.min_new_tokens):
            return self
        return replace(self, max_new_tokens=longest, min_new_tokens=shortest)

    def after(self, num_tokens: int) -> Sampling:
        """Returns these settings for the rest of an answer whose first `num_tokens` tokens exist."""
        return replace(
            self,
            max_new_tokens=self.max_new_tokens - num_tokens,
            min_new_tokens=max(0, self.min_new_tokens - num_tokens),
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of an engine."""

    tokens: Tokens
    """`[R]` token ids, including the stop token."""
    log_probs: FloatArray
    """`[R]` log-probs at the sampling temperature, over `sampling_mask` if there is one, else over the whole
    vocabulary."""
    finish: Literal["stop", "length", "abort"]
    versions: tuple[VersionSpan, ...]
    cached_tokens: int = 0
    """The number of prompt tokens whose prefill was shared or cached."""
    experts: NDArray[np.int16] | None = None
    """`[P + R - 1, layers × K]` the experts that each token was sent to, including the tokens of this
    answer's prompt; None unless they were requested from the engine."""
    sampling_mask: SamplingMask | None = None
    """For each of the R tokens, the tokens that it was drawn from; None unless requested from the engine."""
    retractions: int = 0
    """How often the engine dropped its keys and values to make room for other samples."""
    drafted: int = 0
    """How many guessed tokens the engine verified (speculative decoding)."""
    accepted: int = 0
    """How many of them were right."""
    passes: int = 0
    """How many passes of the model decoded the tokens behind the first; 0 if the engine does not say."""

    @property
    def status(self) -> Status:
        """The status of a sample that ends with this answer."""
        return _STATUS[self.finish]


@dataclass(slots=True)
class Trajectory:
    """A training sample under construction: the tokens that the policy generated, and those inserted between
    them.

    Tokens, log-probs, mask and versions only grow together, in `add` and `give`, so they cannot drift apart.
    Tokens given after the policy's last token are not part of the sample, unless they have weights.
    """

    prompt: Tokens
    """`[P]` at least one token: what the policy saw before its first token."""
    status: Status = Status.COMPLETED
    """How the sample ended; `add` sets it from the finish of the answer that it adds."""
    text: str | None = None
    """The text that rewards read. None: the policy's own tokens decoded, with a line break between its
    turns."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values for rewards and for the saved samples; numbers are averaged as `rollout/info/<name>`."""
    failure: str | None = None
    """Why the sample failed, if its `status` is failed."""
    failure_type: Failure | None = None
    """The type of this failure."""
    turn_rewards: Sequence[float] | None = None
    """The reward of each of `turns`, which algorithms give to its tokens (docs/environments.md). It places
    the sample's reward, which rewards still compute. None: all of it belongs to the end."""
    prompt_images: tuple[PlacedImage, ...] | None = None
    """The images of `prompt`, in the order of their placeholders. None: those of the session's prompt."""
    given_images: list[tuple[int, PlacedImage]] = field(default_factory=list, init=False)
    """The images of given tokens, each with the number of parts up to its own."""
    turns: list[Generation] = field(default_factory=list, init=False)
    """The policy's answers, in order; `add` appends them."""
    _parts: list[Generation | Tokens] = field(default_factory=list, init=False)
    _cross_entropy: dict[int, Weights] = field(default_factory=dict, init=False)
    """The weights of given tokens, by the number of their part."""
    _policy_weights: dict[int, Weights] = field(default_factory=dict, init=False)
    """The weights of the policy's tokens, by the number of their part."""
    _kl_weights: dict[int, Weights] = field(default_factory=dict, init=False)
    """The weights of their KL to the reference, by the number of their part."""
    _added: int = field(default=0, init=False)

    def add(self, made: Generation, weight: Weights = 1.0, kl: Weights = 1.0) -> None:
        """Appends an answer of the policy; an empty answer only sets the status.

        `weight` multiplies the advantages of its tokens, and `kl` their KL to the reference: one number, or
        one for each token.
        """
        if len(made.tokens):
            self._weigh_part(len(self._parts), weight, kl)
            self._parts.append(made)
            self.turns.append(made)
            self._added += len(made.tokens)
        self.status = made.status

    def weigh(self, turn: int, weight: Weights = 1.0, kl: Weights = 1.0) -> None:
        """Sets the weights of `turns[turn]` as `add` does, for what is only known after the answer."""
        numbers = [number for number, part in enumerate(self._parts) if isinstance(part, Generation)]
        self._weigh_part(numbers[turn], weight, kl)

    def give(
        self,
        tokens: Sequence[int] | Tokens,
        images: Sequence[PlacedImage] = (),
        cross_entropy: Weights = 0.0,
    ) -> None:
        """Appends tokens that the policy did not generate (a tool's answer, the next question). `images`:
        those whose placeholders are in the tokens.

        They are not trained by their advantage. `cross_entropy` is the weight of -log-prob in the loss: one
        number, or one for each token. Without it, tokens before the policy's first token are added to the
        prompt, and tokens after its last one are not part of the sample; tokens with it are always part of
        the response.
        """
        given = np.asarray(tokens, dtype=np.int32)
        has_weights = bool(len(given)) and not _is_number(cross_entropy, 0.0)
        assert not (has_weights and images), "placeholders of images have no cross-entropy"
        if has_weights:
            self._cross_entropy[len(self._parts)] = cross_entropy
        if self._parts or has_weights:
            self._parts.append(given)
            self._added += len(given)
            self.given_images += [(len(self._parts), image) for image in images]
        else:
            self.prompt = np.concatenate([self.prompt, given])
            assert self.prompt_images is not None or not images, "set prompt_images to add images to them"
            self.prompt_images = (*self.prompt_images, *images) if self.prompt_images is not None else None

    def weigh_given(self, cross_entropy: Weights) -> None:
        """Sets the weight of the cross-entropy of the tokens that were given last, as `give` does.

        It does nothing where an answer came last, or where these tokens have images.
        """
        number = len(self._parts) - 1
        has_images = any(part == len(self._parts) for part, _ in self.given_images)
        if self._parts and not isinstance(self._parts[number], Generation) and not has_images:
            self._cross_entropy[number] = cross_entropy

    def __len__(self) -> int:
        """Returns the number of tokens so far, including the prompt's."""
        return len(self.prompt) + self._added

    def tokens(self) -> Tokens:
        """Returns `[P + …]` all tokens so far, which the policy is asked to continue."""
        return np.concatenate([self.prompt, *map(_tokens, self._parts)])

    @property
    def images(self) -> tuple[PlacedImage, ...]:
        """Returns the images of all tokens that were given so far, without those of the prompt."""
        return tuple(image for _, image in self.given_images)

    def response_images(self) -> tuple[PlacedImage, ...]:
        """Returns the images of the R tokens of `response`."""
        last = len(self._response_parts())
        return tuple(image for part, image in self.given_images if part <= last)

    def sample_length(self) -> int:
        """Returns P + R, the number of tokens of the sample."""
        return len(self.prompt) + len(self.response()[0])

    def experts(self) -> NDArray[np.int16] | None:
        """Returns `[P + R - 1, layers × K]` the experts of the last answer, whose prompt is everything before
        it. Tokens that were given after it have none.
        """
        turns = self.turns
        if not turns or turns[-1].experts is None:
            return None
        last_experts = turns[-1].experts
        assert len(last_experts) < self.sample_length(), "experts of other tokens than the sample's"
        return last_experts

    def sampling_mask(self) -> SamplingMask | None:
        """Returns the sampling mask of the R tokens of `response`; None if no answer has one."""
        parts = self._response_parts()
        masks = [part.sampling_mask if isinstance(part, Generation) else None for part in parts]
        return joined_masks(masks, [len(_tokens(part)) for part in parts])

    def response(self) -> tuple[Tokens, FloatArray, FloatArray, tuple[VersionSpan, ...]]:
        """Returns `[R]` tokens, log-probs (0 on tokens that were given), loss mask, and the versions of the
        weights.

        The versions cover `[0, R)`: given tokens count to the answer that follows them, or else to the last
        one. Without an answer there are none.
        """
        parts = self._response_parts()
        if len(parts) == 1 and isinstance(made := parts[0], Generation):
            return made.tokens, made.log_probs, np.ones(len(made.tokens), dtype=np.float32), made.versions
        none = np.zeros(0, dtype=np.float32)
        log_probs, masks = [none], [none]
        for part in parts:
            own = isinstance(part, Generation)
            length = len(_tokens(part))
            log_probs.append(part.log_probs if isinstance(part, Generation) else _zeros(length))
            masks.append(np.ones(length, dtype=np.float32) if own else _zeros(length))
        tokens = [np.zeros(0, dtype=np.int32), *map(_tokens, parts)]
        return np.concatenate(tokens), np.concatenate(log_probs), np.concatenate(masks), _spans(parts)

    def rewarded_turns(self) -> tuple[TurnReward, ...]:
        """Returns the end and the reward of each turn in the R tokens of `response`; () without rewards.

        Raises ValueError for another number of rewards than turns, and for one that is not a finite number.
        """
        if self.turn_rewards is None:
            return ()
        if len(self.turn_rewards) != len(self.turns):
            raise ValueError(
                f"{len(self.turn_rewards)} turn_rewards for {len(self.turns)} turns of the policy"
            )
        rewards = [float(reward) for reward in self.turn_rewards]
        if not np.isfinite(rewards).all():
            raise ValueError(f"turn_rewards are {rewards}: a reward must be a finite number")
        parts = self._response_parts()
        ends = np.cumsum([len(_tokens(part)) for part in parts]).tolist()
        own = [end for part, end in zip(parts, ends, strict=True) if isinstance(part, Generation)]
        return tuple(TurnReward(end, reward) for end, reward in zip(own, rewards, strict=True))

    def cross_entropy(self) -> FloatArray | None:
        """Returns `[R]` the cross-entropy's weights; None without any. Raises ValueError for wrong ones."""
        return self._weights(self._cross_entropy, 0.0, "cross-entropy weights")

    def policy_weights(self) -> FloatArray | None:
        """Returns `[R]` the weights of the advantages; None without any. Raises ValueError for wrong ones."""
        return self._weights(self._policy_weights, 1.0, "weights of advantages")

    def kl_weights(self) -> FloatArray | None:
        """Returns `[R]` the weights of the KL to the reference; None without any. Raises ValueError for wrong
        ones.
        """
        return self._weights(self._kl_weights, 1.0, "weights of the KL")

    def check(self) -> None:
        """Raises ValueError or TypeError for rewards of turns, or weights, that are none."""
        self.rewarded_turns()
        self.cross_entropy()
        self.policy_weights()
        self.kl_weights()

    def _weigh_part(self, number: int, weight: Weights, kl: Weights) -> None:
        for weights, value in ((self._policy_weights, weight), (self._kl_weights, kl)):
            weights.pop(number, None)
            if not _is_number(value, 1.0):
                weights[number] = value

    def _weights(self, weights: Mapping[int, Weights], default: float, name: str) -> FloatArray | None:
        if not weights:
            return None
        arrays = []
        for number, part in enumerate(self._response_parts()):
            length = len(_tokens(part))
            own = np.asarray(weights.get(number, default), dtype=np.float32)
            if own.ndim and own.shape != (length,):
                raise ValueError(f"{name} of shape {own.shape} for {length} tokens")
            if not (np.isfinite(own) & (own >= 0)).all():
                raise ValueError(f"{name} that are not finite, or negative")
            arrays.append(np.broadcast_to(own, length))
        return np.concatenate(arrays)

    def _response_parts(self) -> list[Generation | Tokens]:
        """Returns answers and given tokens, up to the last token of the policy or with a weight."""
        parts = list(self._parts)
        while parts and not isinstance(parts[-1], Generation) and len(parts) - 1 not in self._cross_entropy:
            parts.pop()
        return parts


def _spans(parts: Sequence[Generation | Tokens]) -> tuple[VersionSpan, ...]:
    """Returns spans without gaps; adjacent spans of the same version are merged."""
    spans: list[VersionSpan] = []
    start = position = 0
    for part in parts:
        for span in part.versions if isinstance(part, Generation) else ():
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(span.version, start, position + span.end))
            start = position + span.end
        position += len(_tokens(part))
    if spans and start < position:
        last = spans.pop()
        spans.append(VersionSpan(last.version, last.start, position))
    return tuple(spans)


def _is_number(weight: Weights, number: float) -> bool:
    return isinstance(weight, int | float) and weight == number


def _tokens(part: Generation | Tokens) -> Tokens:
    return part.tokens if isinstance(part, Generation) else part


def _zeros(length: int) -> FloatArray:
    return np.zeros(length, dtype=np.float32)
