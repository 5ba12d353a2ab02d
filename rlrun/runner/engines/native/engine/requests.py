"""What a client requests: samples with their sampling parameters, in groups with the same prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Sampling
from rlrun.runner.contracts.carriers import NO_OPTIONS, RequestOptions
from rlrun.runner.engines.native.model.image_tower import NO_IMAGES, PromptImages

MAX_N = 4096
"""Most samples of one prompt."""
MAX_STOPS = 128
"""Most stop strings of a sample."""
MAX_STOP_LENGTH = 1024
"""Most characters of a stop string."""
MAX_STOP_TOKENS = 4096
_INT32, _INT63 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams(Sampling):
    """Those of SGLang's `sampling_params` that the engine supports: rlrun's own, and three more."""

    max_new_tokens: int = 128
    """0: nothing is generated; the answer has the log-probs of the prompt's tokens."""
    ignore_eos: bool = False
    """Neither kind of stop token ends the sample."""
    sampling_seed: int | None = None
    """None: the engine chooses one."""
    n: int = 1
    """Number of samples of the prompt; sample k has the seed `sampling_seed + k`."""


def parse_sampling(raw: Mapping[str, Any]) -> SamplingParams:
    """Parses a request's `sampling_params`. Raises ValueError with the key and the values that it may
    have.
    """
    supported = SamplingParams.__dataclass_fields__
    unknown = [key for key in raw if key not in supported]
    if unknown:
        raise ValueError(
            f"sampling_params: unknown {', '.join(unknown)}; supported are {', '.join(supported)}"
        )
    values = {key: value for key, value in raw.items() if value is not None}
    values["stop"] = _as_tuple(values.get("stop", ()))
    values["stop_token_ids"] = _as_tuple(values.get("stop_token_ids", ()))
    params = SamplingParams(**values)
    for key, valid, expected in _rules(params):
        if not valid:
            value = repr(getattr(params, key))
            value = value if len(value) <= 100 else f"{value[:100]}…"
            raise ValueError(f"sampling_params.{key} is {value}; it must be {expected}")
    return params


def _rules(params: SamplingParams) -> tuple[tuple[str, bool, str], ...]:
    """Returns each key, whether its value is valid, and which values are."""
    top_k, temperature = params.top_k, params.temperature
    valid_temperature = _is_number(temperature) and (temperature == 0 or 1e-6 <= temperature <= 1e6)
    valid_stops = len(params.stop) <= MAX_STOPS and all(
        isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in params.stop
    )
    valid_stop_tokens = len(params.stop_token_ids) <= MAX_STOP_TOKENS and all(
        _is_whole(token, 0) for token in params.stop_token_ids
    )
    return (
        ("max_new_tokens", _is_whole(params.max_new_tokens, 0), "a whole number, at least 0"),
        ("min_new_tokens", _is_whole(params.min_new_tokens, 0), "a whole number, at least 0"),
        ("n", _is_whole(params.n, 1, MAX_N), f"a whole number from 1 to {MAX_N}"),
        ("temperature", valid_temperature, "0, or a number from 0.000001 to 1000000"),
        ("top_p", _is_number(params.top_p) and 0 < params.top_p <= 1, "above 0, at most 1"),
        ("top_k", _is_whole(top_k, 1) or _is_whole(top_k, -1, 0), "a whole number above 0, or -1 for all"),
        (
            "stop",
            valid_stops,
            f"a string of at most {MAX_STOP_LENGTH} characters, or a list of {MAX_STOPS} at most",
        ),
        ("stop_token_ids", valid_stop_tokens, f"a list of at most {MAX_STOP_TOKENS} token ids"),
        ("ignore_eos", isinstance(params.ignore_eos, bool), "true or false"),
        (
            "sampling_seed",
            params.sampling_seed is None or _is_whole(params.sampling_seed, -_INT63 - 1, 2 * _INT63 + 1),
            "a whole number of 64 bits",
        ),
    )


@dataclass(slots=True, eq=False)
class SampleInProgress:
    """A sample from its request until its answer.

    The engine's thread owns it from `submit` until `on_done` is called.
    """

    id: str
    prompt: NDArray[np.int32]
    """`[P]`"""
    params: SamplingParams
    seed: int
    """A signed 64-bit number."""
    on_done: Callable[["SampleInProgress"], None] = lambda sample: None
    """Called once, in the engine's thread."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """`[R]` generated tokens, filled in when the sample is retracted or ends."""
    log_probs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """`[R]`"""
    options: RequestOptions = NO_OPTIONS
    masks: list[NDArray[np.int32]] = field(default_factory=list)
    """For each of the R tokens, the tokens that it was drawn from; empty unless it was asked for."""
    mask_log_probs: list[float] = field(default_factory=list)
    """`[R]` log-probs of the tokens over their masks; empty unless they were asked for."""
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    """Pieces `[tokens, layers · K]` of the experts of the prompt's and the generated tokens, in order; dense
    layers have 0. The last token is never routed. Empty unless the request asks for them."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(weight version, index of the first token that it generated), in order."""
    finish: dict[str, Any] | None = None
    """SGLang's `finish_reason`; None until the sample ends."""
    retractions: int = 0
    """How often its keys and values were dropped to make room for other samples."""
    cached_tokens: int = 0
    """How many of the prompt's tokens another sample's prefill computed."""
    drafted: int = 0
    """How many guessed tokens the model has verified."""
    accepted: int = 0
    """How many of them were right."""
    images: PromptImages = NO_IMAGES
    """The images of the prompt, in which placeholders stand for each of their tokens."""
    prompt_log_probs: NDArray[np.float32] | None = None
    """`[P - 1]` log-probs of the prompt's tokens from the second one on, if the request scores its prompt."""
    top_ids: NDArray[np.int32] | None = None
    """`[P - 1, k]` the most probable tokens at each scored position, in the order of their probabilities."""
    top_log_probs: NDArray[np.float32] | None = None
    """`[P - 1, k]`"""

    def record_experts(self, experts: NDArray[np.int16]) -> None:
        """Appends the experts of the tokens that have none yet, given those `[P', layers · K]` of the first
        P' tokens.

        A sample that was retracted passes through the model again, and keeps the experts that it had.
        """
        if self.options.return_routed_experts:
            self.experts.append(experts[sum(map(len, self.experts)) :])

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """Weight versions as (version, start, end) of tokens; no span is empty, and neighbours differ in
        version.
        """
        spans: list[tuple[int, int, int]] = []
        bounds = [*self.starts, (0, len(self.tokens))]
        for (version, start), (_, end) in pairwise(bounds):
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1], end)
            elif end > start:
                spans.append((version, start, end))
        return spans


@dataclass(slots=True, eq=False)
class Group:
    """Samples that share a prompt, and its keys and values in the cache."""

    prompt: NDArray[np.int32]
    """`[P]`; for a retracted sample, followed by the tokens that it has generated."""
    waiting: list[SampleInProgress]
    """Jobs that do not run yet."""
    images: PromptImages = NO_IMAGES
    """The images of the prompt."""
    seat: int | None = None
    """Row of the prompts' block tables; None while the prompt is not in the cache."""
    blocks: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    running: int = 0
    """Number of running samples that read the blocks."""
    cached: int = 0
    """How many of the prompt's tokens were in the cache before its prefill (`prefix_cache`)."""
    cached_experts: NDArray[np.int16] | None = None
    """`[cached, layers · K]` experts of those tokens; None unless they are known."""
    logits: Any = None
    """`[1, V]` logits after the prompt's last token, kept while some samples still wait for a row."""
    recurrent: Any = None
    """The `RecurrentStates` after the prompt, kept as long as the logits; until the prefill those after its
    cached tokens. None without either, and without Gated DeltaNet."""
    experts: NDArray[np.int16] | None = None
    """`[P, layers · K]` experts of the prompt's tokens, kept as long as the logits; None unless a sample
    reports them."""


def group_samples(samples: Sequence[SampleInProgress]) -> list[Group]:
    """Groups neighbouring samples that have equal prompts with equal images, in order."""
    groups: list[Group] = []
    for sample in samples:
        if groups and _is_shared(groups[-1], sample):
            sample.cached_tokens = len(sample.prompt)
            groups[-1].waiting.append(sample)
        else:
            groups.append(Group(sample.prompt, [sample], sample.images))
    return groups


def _is_shared(group: Group, sample: SampleInProgress) -> bool:
    """Returns whether a sample has the group's prompt. Different images may have the same tokens."""
    return np.array_equal(group.prompt, sample.prompt) and group.images.key == sample.images.key


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Returns a list as a tuple, and any other value as a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_whole(value: Any, least: int, most: int = _INT32) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
