"""Single fields of an engine's answer, each read and checked in one numpy or C-level pass; pure."""

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.errors import BadAnswer

LOWEST = -10_000.0
"""The lowest log-prob that is accepted; float32 rounds a sampled token's probability to 0 below -104."""
ROUNDING = 1e-3
"""How far rounding may lift the log-prob of a certain token above 0."""
LONGEST_QUOTE = 200
_FINISHES: Mapping[str, Literal["stop", "length", "abort"]] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
}


def read_json(raw: bytes) -> Any:
    """The JSON of an answer. BadAnswer where it is none: cut off, for example."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadAnswer(f"{len(raw)} bytes that are not JSON ({error})") from None


def table(value: Any, what: str) -> Mapping[str, Any]:
    """The value, where it is a JSON object. BadAnswer otherwise."""
    if not isinstance(value, dict):
        raise BadAnswer(f"{quoted(value)} as {what}, which must be an object")
    return value


def quoted(value: Any) -> str:
    """The beginning of a JSON value, as JSON."""
    text = json.dumps(value)  # in ASCII: nothing that a terminal would obey
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def version_number(raw: Any) -> int:
    """A weight version as a number; 0 for a name, which SGLang servers start with ("default"), and for none.

    BadAnswer where it is negative, or neither a number nor text.
    """
    if raw is None or (isinstance(raw, str) and not raw.lstrip("-").isdecimal()):
        return 0
    if not isinstance(raw, str) and not _is_whole(raw):
        raise BadAnswer(f"weight version {quoted(raw)}; it must be a whole number")
    number = int(raw) if len(str(raw)) < 20 and str(raw).count("-") < 2 else -1
    if number < 0:
        raise BadAnswer(f"weight version {quoted(raw)}; it must be a whole number, at least 0")
    return number


def read_finish(reason: Any, sample: str) -> Literal["stop", "length", "abort"]:
    kind = reason.get("type") if isinstance(reason, dict) else None
    finish = _FINISHES.get(kind) if isinstance(kind, str) else None
    if finish is None:
        raise BadAnswer(
            f"finish_reason {quoted(reason)} for {sample}; known types are {', '.join(_FINISHES)}"
        )
    return finish


def read_tokens(ids: Any, vocabulary: int, sample: str) -> NDArray[np.int32]:
    if not isinstance(ids, list):
        raise BadAnswer(f"output_ids {quoted(ids)} for {sample}; it must be a list of token ids")
    if not ids:
        return np.zeros(0, np.int32)
    array = _array(ids, "iu", "token id", "a whole number of 64 bits", sample)
    wrong = (array < 0) | (array >= vocabulary)
    if wrong.any():
        place = int(wrong.argmax())
        raise BadAnswer(
            f"token id {array[place]} at token {place} of {sample}; ids of this model are below {vocabulary}"
        )
    return array.astype(np.int32)


def read_log_probs(values: Sequence[Any], sample: str) -> NDArray[np.float32]:
    if not values:
        return np.zeros(0, np.float32)
    array = _array(values, "fiu", "log-prob", "a number", sample)
    right = (array >= LOWEST) & (array <= ROUNDING)
    if not right.all():
        place = int(right.argmin())
        raise BadAnswer(
            f"log-prob {array[place]:g} at token {place} of {sample}; log-probs are at most 0, and at least "
            f"{LOWEST:g}"
        )
    return array.astype(np.float32)


def _array(values: Sequence[Any], kinds: str, what: str, expected: str, sample: str) -> NDArray[Any]:
    """A vector of one of these kinds of numbers (`dtype.kind`)."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # lists of different lengths
        array = np.zeros((0, 0))
    if array.ndim == 1 and array.dtype.kind in kinds:
        return array
    place = next((k for k, value in enumerate(values) if not _is_of(value, kinds)), 0)
    raise BadAnswer(f"{what} {quoted(values[place])} at token {place} of {sample}; it must be {expected}")


def _is_of(value: Any, kinds: str) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and abs(value) < 2**63) or ("f" in kinds and isinstance(value, float))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_columns(entries: Any, count: int, sample: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Log-probs and token ids of `[[log-prob, token id, text], …]`."""
    if not isinstance(entries, list) or len(entries) != count:
        raise BadAnswer(f"{shape(entries)} as the log-probs of {sample}, which has {count} tokens")
    if not entries:
        return (), ()
    try:
        values, ids, *_ = zip(*entries, strict=True)
    except (TypeError, ValueError):
        raise BadAnswer(f"log-probs of {sample} that are not lists of log-prob, token id and text") from None
    return values, ids


def read_spans(meta: Mapping[str, Any], length: int, sample: str) -> tuple[VersionSpan, ...]:
    if not length:
        return ()
    whole = {"version": meta.get("weight_version"), "start": 0, "end": length}
    given = meta.get("weight_versions") or [whole]
    if not isinstance(given, list):
        raise BadAnswer(f"weight_versions {quoted(given)} for {sample}; it must be a list of spans")
    spans: list[VersionSpan] = []
    place = 0
    for one in given:
        span = table(one, f"a span of weight_versions of {sample}")
        start, end = (span.get(key) for key in ("start", "end"))
        if not isinstance(start, int) or not isinstance(end, int) or start != place or end < start:
            raise BadAnswer(f"weight_versions {quoted(given)} for {sample}, which leave gaps or overlap")
        place = end
        if end > start:
            spans.append(VersionSpan(version_number(span.get("version")), start, end))
    versions = [span.version for span in spans]
    if place != length or versions != sorted(versions):
        why = "go back" if place == length else f"end at token {place} of {length}"
        raise BadAnswer(f"weight_versions {quoted(given)} for {sample}, which {why}")
    return tuple(spans)


def read_cached(meta: Mapping[str, Any], prompt: int, sample: str) -> int:
    """A retracted sample's own tokens may be counted as well."""
    cached = meta.get("cached_tokens") or 0
    if not _is_whole(cached) or cached < 0:
        raise BadAnswer(f"cached_tokens {quoted(cached)} for {sample}; it must be a whole number")
    return min(cached, prompt)


def read_experts(
    meta: Mapping[str, Any], rows: int, count: int | None, sample: str
) -> NDArray[np.int16] | None:
    """base64 of int32 `[prompt + response - 1, layers, K]`, in the order of the tokens."""
    if count is None:
        return None
    try:
        flat = np.frombuffer(b64decode(meta["routed_experts"], validate=True), np.int32)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise BadAnswer(f"no routed_experts for {sample}, or not base64 of int32 numbers") from None
    if not rows or not len(flat) or len(flat) % rows:
        raise BadAnswer(f"experts of {len(flat)} numbers for {rows} tokens of {sample}")
    if flat.min() < 0 or flat.max() >= count:
        raise BadAnswer(f"experts {flat.min()} to {flat.max()} for {sample}; the model has {count}")
    return flat.reshape(rows, -1).astype(np.int16)


def read_mask(
    meta: Mapping[str, Any], tokens: NDArray[np.int32], vocabulary: int, sample: str
) -> tuple[SamplingMask, NDArray[np.float32]]:
    """What each token was drawn from, and its log-prob over that."""
    given = meta.get("output_token_sampling_mask")
    if given is None:
        raise BadAnswer(
            f"no sampling mask for {sample}: the engine cannot record any; set rollout.sampling_mask = false "
            "with an algorithm.correction, or remove rollout.top_p and rollout.top_k"
        )
    values = meta.get("output_token_sampling_logprobs") or []
    for what, entries in (("sampling masks", given), ("log-probs over the sampling masks", values)):
        if not isinstance(entries, list) or len(entries) != len(tokens):
            raise BadAnswer(f"{shape(entries)} as the {what} of {sample}, which has {len(tokens)} tokens")
    if set(map(type, given)) != {list}:
        raise BadAnswer(f"sampling masks of {sample} that are not lists of token ids")
    lengths = np.fromiter(map(len, given), np.int32, len(given))
    ids = read_tokens(list(chain.from_iterable(given)), vocabulary, f"the sampling masks of {sample}")
    _check_mask(ids, lengths, tokens, sample)
    return SamplingMask(ids, lengths), read_log_probs(values, sample)


def _check_mask(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], tokens: NDArray[np.int32], sample: str
) -> None:
    """Each token is one of its candidates, and no candidate is named twice."""
    rows = np.repeat(np.arange(len(tokens)), lengths)
    drawn = np.bincount(rows[ids == tokens[rows]], minlength=len(tokens))
    if not drawn.all():
        place = int(drawn.argmin())
        raise BadAnswer(
            f"token {tokens[place]} at {place} of {sample}, which its sampling mask does not have"
        )
    keys = (rows << 32) | ids
    if len(np.unique(keys)) != len(keys):
        raise BadAnswer(f"sampling masks of {sample} that name a token twice")


def shape(value: Any) -> str:
    """What an answer is, in a few words."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return quoted(value)
