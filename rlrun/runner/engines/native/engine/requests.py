"""What a client asks of the engine: samples, grouped by their prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_N = 4096
"""Samples of one prompt."""
MAX_STOPS = 128
"""Stop strings of a sample."""
MAX_STOP_LENGTH = 1024
"""Characters of a stop string."""
MAX_STOP_TOKENS = 4096
_INT32, _INT63 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's `sampling_params`, the part the engine computes."""

    max_new_tokens: int = 128
    """0: none, the prompt's own log-probs alone."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    min_new_tokens: int = 0
    """No stop token before this many tokens."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """Stop tokens of either kind do not end the sample."""
    sampling_seed: int | None = None
    """None: drawn by the engine."""
    n: int = 1
    """Samples of the prompt; sample k has seed `sampling_seed + k`."""


def parse_sampling(raw: Mapping[str, Any]) -> SamplingParams:
    """Check a request's `sampling_params`. Raises ValueError naming the key and what it may be."""
    known = SamplingParams.__dataclass_fields__
    unknown = [key for key in raw if key not in known]
    if unknown:
        raise ValueError(f"sampling_params: unknown {', '.join(unknown)}; known: {', '.join(known)}")
    values = {key: value for key, value in raw.items() if value is not None}
    values["stop"] = _tuple(values.get("stop", ()))
    values["stop_token_ids"] = _tuple(values.get("stop_token_ids", ()))
    params = SamplingParams(**values)
    for key, valid, expected in _rules(params):
        if not valid:
            given = repr(getattr(params, key))
            given = given if len(given) <= 100 else f"{given[:100]}…"
            raise ValueError(f"sampling_params.{key} is {given}; it must be {expected}")
    return params


def _rules(params: SamplingParams) -> tuple[tuple[str, bool, str], ...]:
    """Each key, whether its value will do, and what it may be."""
    top_k, temperature = params.top_k, params.temperature
    warm = _number(temperature) and (temperature == 0 or 1e-6 <= temperature <= 1e6)
    stops = len(params.stop) <= MAX_STOPS and all(
        isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in params.stop
    )
    tokens = len(params.stop_token_ids) <= MAX_STOP_TOKENS and all(
        _whole(token, 0) for token in params.stop_token_ids
    )
    return (
        ("max_new_tokens", _whole(params.max_new_tokens, 0), "a whole number, at least 0"),
        ("min_new_tokens", _whole(params.min_new_tokens, 0), "a whole number, at least 0"),
        ("n", _whole(params.n, 1, MAX_N), f"a whole number from 1 to {MAX_N}"),
        ("temperature", warm, "0, or a number from 0.000001 to 1000000"),
        ("top_p", _number(params.top_p) and 0 < params.top_p <= 1, "above 0, at most 1"),
        ("top_k", _whole(top_k, 1) or _whole(top_k, -1, 0), "a whole number above 0, or -1 for all"),
        (
            "stop",
            stops,
            f"a string of at most {MAX_STOP_LENGTH} characters, or a list of {MAX_STOPS} at most",
        ),
        ("stop_token_ids", tokens, f"a list of at most {MAX_STOP_TOKENS} token ids"),
        ("ignore_eos", isinstance(params.ignore_eos, bool), "true or false"),
        (
            "sampling_seed",
            params.sampling_seed is None or _whole(params.sampling_seed, -_INT63 - 1, 2 * _INT63 + 1),
            "a whole number of 64 bits",
        ),
    )


@dataclass(slots=True, eq=False)
class Job:
    """One sample on its way. The engine's thread owns it from submission until `on_done` is called."""

    id: str
    prompt: NDArray[np.int32]
    """`[P]`"""
    params: SamplingParams
    seed: int
    """Signed 64 bits."""
    on_done: Callable[["Job"], None] = lambda job: None
    """Called once, in the engine's thread."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """`[R]`, complete when done."""
    log_probs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """`[R]`"""
    masked: bool = False
    """Record what each token is drawn from; top-k or top-p limit it."""
    masks: list[NDArray[np.int32]] = field(default_factory=list)
    """The tokens that each of the R was drawn from, where they are recorded."""
    mask_log_probs: list[float] = field(default_factory=list)
    """Log-probs over those tokens."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(weight version, first token made by it), in order."""
    finish: dict[str, Any] | None = None
    """SGLang's `finish_reason`; None while it runs."""
    cached_tokens: int = 0
    """Prompt tokens that another sample's prefill computed."""
    prompt_log_probs: NDArray[np.float32] | None = None
    """`[P - 1]` of the prompt's tokens from the second on, where they alone were asked for."""

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(version, start, end) of the tokens made; no span is empty, neighbours differ in version."""
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
    """Samples that share a prompt, and its keys and values."""

    prompt: NDArray[np.int32]
    """`[P]`; of a retracted sample, its own tokens as well."""
    waiting: list[Job]
    """Not yet running."""
    seat: int | None = None
    """Row of the prompts' block tables; None before the prefill."""
    blocks: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    running: int = 0
    """Samples that use the blocks."""
    logits: Any = None
    """`[1, V]` of the prompt's last token, kept while some samples still wait for a row."""


def group_jobs(jobs: Sequence[Job]) -> list[Group]:
    """Group neighbours with equal prompts, in order."""
    groups: list[Group] = []
    for job in jobs:
        if groups and np.array_equal(groups[-1].prompt, job.prompt):
            job.cached_tokens = len(job.prompt)
            groups[-1].waiting.append(job)
        else:
            groups.append(Group(job.prompt, [job]))
    return groups


def _tuple(value: Any) -> tuple[Any, ...]:
    """Several values from one or a list."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _whole(value: Any, least: int, most: int = _INT32) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
