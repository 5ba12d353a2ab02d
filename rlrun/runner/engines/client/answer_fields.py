"""Reads and checks the fields of an engine's answer, each in one numpy or C-level pass; pure.

`sample` is the name of the sample in messages. The message of a BadAnswer continues the words "answered
/generate with".
"""

import json
import re
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

MIN_LOG_PROB = -10_000.0
"""The lowest log-prob that is accepted. In float32 the probability of a sampled token is 0 below -104."""
MAX_LOG_PROB = 1e-3
"""The highest log-prob that is accepted: rounding may lift that of a certain token above 0."""
MAX_QUOTE_CHARS = 200
_FIRST_VERSION = "default"
_VERSION = re.compile(r"[0-9]{1,18}")
_DRAFT_COUNTS = ("num_proposed_drafts", "num_correct_drafts", "verify_ct")
_FINISHES: Mapping[str, Literal["stop", "length", "abort"]] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
}


def read_json(raw: bytes) -> Any:
    """Returns the JSON of an answer. Raises BadAnswer if it is not JSON, for example because it is cut
    off.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadAnswer(f"{len(raw)} bytes that are not JSON ({error})") from None


def json_object(value: Any, what: str) -> Mapping[str, Any]:
    """Returns the value if it is a JSON object, else raises BadAnswer. `what`: its name in the message."""
    if not isinstance(value, dict):
        raise BadAnswer(f"{quoted(value)} as {what}, which must be an object")
    return value


def quoted(value: Any) -> str:
    """Returns the beginning of a JSON value, as JSON."""
    try:
        text = json.dumps(value)  # ASCII only, so that it cannot contain control sequences of a terminal
    except RecursionError:
        text = "a value that is nested too deeply to be shown"
    return text if len(text) <= MAX_QUOTE_CHARS else f"{text[:MAX_QUOTE_CHARS]}…"


def version_number(raw: Any) -> int:
    """Returns a weight version as a number.

    It is 0 for "default", with which SGLang servers start. Raises BadAnswer for anything else that is not a
    whole number: every other version is one that rlrun has sent.
    """
    if raw == _FIRST_VERSION:
        return 0
    text = str(raw) if _is_whole(raw) else raw
    if not isinstance(text, str) or not _VERSION.fullmatch(text):
        raise BadAnswer(f'weight version {quoted(raw)}; it must be a whole number, at least 0, or "default"')
    return int(text)


def read_finish(reason: Any, sample: str) -> Literal["stop", "length", "abort"]:
    """Returns why a sample ended."""
    kind = reason.get("type") if isinstance(reason, dict) else None
    finish = _FINISHES.get(kind) if isinstance(kind, str) else None
    if finish is None:
        raise BadAnswer(
            f"finish_reason {quoted(reason)} for {sample}; known types are {', '.join(_FINISHES)}"
        )
    return finish


def read_listed_tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any], vocabulary: int, sample: str
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Returns the tokens `[T]` and their log-probs `[T]`, from lists of numbers as SGLang sends them."""
    tokens = read_tokens(answer.get("output_ids"), vocabulary, sample)
    values, log_prob_ids = read_columns(meta.get("output_token_logprobs") or [], len(tokens), sample)
    if log_prob_ids != tuple(answer["output_ids"]):
        raise BadAnswer(f"log-probs of other tokens than those of {sample}")
    return tokens, read_log_probs(values, sample)


def read_packed_tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any], vocabulary: int, sample: str
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Returns the tokens `[T]` and their log-probs `[T]`, from base64 as rlrun's own engines send them."""
    tokens = _unpack(answer.get("output_ids"), "<i4", f"output_ids for {sample}").astype(np.int32, copy=False)
    log_probs = _unpack(meta.get("output_token_logprobs"), "<f4", f"output_token_logprobs for {sample}")
    if len(log_probs) != len(tokens):
        raise BadAnswer(f"{len(log_probs)} log-probs of {sample}, which has {len(tokens)} tokens")
    if len(tokens):
        _check_tokens(tokens, vocabulary, sample)
        _check_log_probs(log_probs, sample)
    return tokens, log_probs.astype(np.float32, copy=False)


def _unpack(text: Any, dtype: str, what: str) -> NDArray[Any]:
    """Returns the numbers of a base64 text."""
    try:
        return np.frombuffer(b64decode(text, validate=True), dtype)
    except (TypeError, ValueError):  # binascii.Error is a ValueError
        raise BadAnswer(f"{quoted(text)} as {what}; it must be base64 of {np.dtype(dtype)} numbers") from None


def read_tokens(ids: Any, vocabulary: int, sample: str) -> NDArray[np.int32]:
    """Returns token ids `[T]`, each below `vocabulary`."""
    if not isinstance(ids, list):
        raise BadAnswer(f"output_ids {quoted(ids)} for {sample}; it must be a list of token ids")
    if not ids:
        return np.zeros(0, np.int32)
    array = _array(ids, "iu", "token id", "a whole number of 64 bits", sample)
    _check_tokens(array, vocabulary, sample)
    return array.astype(np.int32)


def read_log_probs(values: Sequence[Any], sample: str) -> NDArray[np.float32]:
    """Returns log-probs `[T]`, each between MIN_LOG_PROB and MAX_LOG_PROB."""
    if not values:
        return np.zeros(0, np.float32)
    array = _array(values, "fiu", "log-prob", "a number", sample)
    _check_log_probs(array, sample)
    return array.astype(np.float32)


def _check_tokens(ids: NDArray[Any], vocabulary: int, sample: str) -> None:
    """Raises BadAnswer unless each of the ids, at least one, is in the vocabulary."""
    if ids.min() >= 0 and ids.max() < vocabulary:
        return
    index = int(((ids < 0) | (ids >= vocabulary)).argmax())
    raise BadAnswer(
        f"token id {ids[index]} at token {index} of {sample}; ids of this model are below {vocabulary}"
    )


def _check_log_probs(values: NDArray[Any], sample: str) -> None:
    """Raises BadAnswer unless each of the values, at least one, can be a log-prob."""
    if values.min() >= MIN_LOG_PROB and values.max() <= MAX_LOG_PROB:  # NaN makes both false
        return
    index = int(((values >= MIN_LOG_PROB) & (values <= MAX_LOG_PROB)).argmin())
    raise BadAnswer(
        f"log-prob {values[index]:g} at token {index} of {sample}; log-probs are at most 0, and at least "
        f"{MIN_LOG_PROB:g}"
    )


def _array(values: Sequence[Any], kinds: str, what: str, expected: str, sample: str) -> NDArray[Any]:
    """Returns a vector of one of these kinds of numbers (`dtype.kind`); raises BadAnswer for other values."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # lists of different lengths
        array = np.zeros((0, 0))
    if array.ndim == 1 and array.dtype.kind in kinds:
        return array
    index = next((k for k, value in enumerate(values) if not _is_of_kind(value, kinds)), 0)
    raise BadAnswer(f"{what} {quoted(values[index])} at token {index} of {sample}; it must be {expected}")


def _is_of_kind(value: Any, kinds: str) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and abs(value) < 2**63) or ("f" in kinds and isinstance(value, float))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_columns(entries: Any, count: int, sample: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the log-probs and the token ids of `[[log-prob, token id, text], …]`."""
    if not isinstance(entries, list) or len(entries) != count:
        raise BadAnswer(f"{summary(entries)} as the log-probs of {sample}, which has {count} tokens")
    if not entries:
        return (), ()
    try:
        values, ids, *_ = zip(*entries, strict=True)
    except (TypeError, ValueError):
        raise BadAnswer(f"log-probs of {sample} that are not lists of log-prob, token id and text") from None
    return values, ids


def read_spans(meta: Mapping[str, Any], length: int, sample: str) -> tuple[VersionSpan, ...]:
    """Returns the versions of the weights that made the sample's tokens, without gaps and in order."""
    if not length:
        return ()
    whole = {"version": meta.get("weight_version"), "start": 0, "end": length}
    raw_spans = meta.get("weight_versions") or [whole]
    if not isinstance(raw_spans, list):
        raise BadAnswer(f"weight_versions {quoted(raw_spans)} for {sample}; it must be a list of spans")
    spans: list[VersionSpan] = []
    previous_end = 0
    for raw_span in raw_spans:
        span = json_object(raw_span, f"a span of weight_versions of {sample}")
        start, end = (span.get(key, -1) for key in ("start", "end"))
        are_whole = _is_whole(start) and _is_whole(end)
        if not are_whole or start != previous_end or end < start:
            raise BadAnswer(f"weight_versions {quoted(raw_spans)} for {sample}, which leave gaps or overlap")
        previous_end = end
        if end > start:
            spans.append(VersionSpan(version_number(span.get("version")), start, end))
    versions = [span.version for span in spans]
    if previous_end != length or versions != sorted(versions):
        why = "go back" if previous_end == length else f"end at token {previous_end} of {length}"
        raise BadAnswer(f"weight_versions {quoted(raw_spans)} for {sample}, which {why}")
    return tuple(spans)


def read_cached(meta: Mapping[str, Any], prompt: int, sample: str) -> int:
    """Returns how many of the prompt's tokens were cached.

    An engine may also count tokens of the response, where it retracted the sample and prefilled it again.
    """
    cached = meta.get("cached_tokens") or 0
    if not _is_whole(cached) or cached < 0:
        raise BadAnswer(f"cached_tokens {quoted(cached)} for {sample}; it must be a whole number")
    return min(cached, prompt)


def read_retractions(meta: Mapping[str, Any], versions: int, sample: str) -> int:
    """Returns how often the sample lost its keys and values because the cache was full.

    SGLang also counts the pause of each update of the weights, which a sample of several `versions` had.
    """
    count = meta.get("num_retractions") or 0
    if not _is_whole(count) or count < 0:
        raise BadAnswer(f"num_retractions {quoted(count)} for {sample}; it must be a whole number")
    return max(0, count - max(0, versions - 1))


def read_load(answer: Mapping[str, Any]) -> tuple[int, int, int, float]:
    """Returns running and waiting samples, the most that may run, and the share of the fullest cache in use,
    from an answer of SGLang's /v1/loads.
    """
    ranks = answer.get("loads")
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise BadAnswer(f"loads {quoted(ranks)}; it must be a list of objects")
    totals = []
    for name in ("num_running_reqs", "num_waiting_reqs", "max_running_requests"):
        counts = [rank.get(name, 0) for rank in ranks]
        if not all(_is_whole(count) and count >= 0 for count in counts):
            raise BadAnswer(f"{name} {quoted(counts)}; they must be whole numbers")
        totals.append(sum(counts))
    shares = [rank.get("token_usage", 0.0) for rank in ranks]
    if not all(isinstance(share, int | float) for share in shares):
        raise BadAnswer(f"token_usage {quoted(shares)}; they must be numbers")
    running, waiting, most = totals
    return running, waiting, most, max(shares, default=0.0)


def read_drafts(meta: Mapping[str, Any], sample: str) -> tuple[int, int, int]:
    """Returns how many tokens were drafted for the sample, how many of them were right, and how many passes
    verified them.
    """
    drafted, right, passes = (meta.get(f"spec_{name}") or 0 for name in _DRAFT_COUNTS)
    if not _is_whole(drafted) or not _is_whole(right) or not 0 <= right <= drafted:
        raise BadAnswer(f"{quoted(right)} of {quoted(drafted)} drafted tokens right for {sample}")
    if not _is_whole(passes) or passes < 0:
        raise BadAnswer(f"spec_verify_ct {quoted(passes)} for {sample}; it must be a whole number")
    return drafted, right, passes


def read_experts(
    meta: Mapping[str, Any], rows: int, count: int | None, sample: str
) -> NDArray[np.int16] | None:
    """Returns expert ids `[rows, layers × K]`, where `rows` is prompt + response - 1 tokens.

    The engine sends base64 of int32 `[rows, layers, K]`. `count`: the model's experts; None if the engine
    was not asked for them.
    """
    if count is None:
        if meta.get("routed_experts"):
            raise BadAnswer(f"experts for {sample}, although none were asked for")
        return None
    flat = _unpack(meta.get("routed_experts"), "<i4", f"routed_experts for {sample}")
    if not rows or not len(flat) or len(flat) % rows:
        raise BadAnswer(f"experts of {len(flat)} numbers for {rows} tokens of {sample}")
    if flat.min() < 0 or flat.max() >= count:
        raise BadAnswer(f"experts {flat.min()} to {flat.max()} for {sample}; the model has {count}")
    return flat.reshape(rows, -1).astype(np.int16)


def read_mask(
    meta: Mapping[str, Any], tokens: NDArray[np.int32], vocabulary: int, sample: str
) -> tuple[SamplingMask, NDArray[np.float32]]:
    """Returns the tokens that each token was sampled from, and its log-prob `[T]` over those."""
    masks = meta.get("output_token_sampling_mask")
    if masks is None:
        raise BadAnswer(
            f"no sampling mask for {sample}: the engine cannot record masks; set rollout.sampling_mask = "
            "false with an algorithm.correction, or remove rollout.top_p and rollout.top_k"
        )
    values = meta.get("output_token_sampling_logprobs") or []
    for what, entries in (("sampling masks", masks), ("log-probs over the sampling masks", values)):
        if not isinstance(entries, list) or len(entries) != len(tokens):
            raise BadAnswer(f"{summary(entries)} as the {what} of {sample}, which has {len(tokens)} tokens")
    if set(map(type, masks)) != {list}:
        raise BadAnswer(f"sampling masks of {sample} that are not lists of token ids")
    lengths = np.fromiter(map(len, masks), np.int32, len(masks))
    ids = read_tokens(list(chain.from_iterable(masks)), vocabulary, f"the sampling masks of {sample}")
    _check_mask(ids, lengths, tokens, sample)
    return SamplingMask(ids, lengths), read_log_probs(values, sample)


def _check_mask(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], tokens: NDArray[np.int32], sample: str
) -> None:
    """Raises BadAnswer unless each token is in its mask, and no mask has a token twice."""
    rows = np.repeat(np.arange(len(tokens)), lengths)
    occurrences = np.bincount(rows[ids == tokens[rows]], minlength=len(tokens))
    if not occurrences.all():
        index = int(occurrences.argmin())
        raise BadAnswer(
            f"token {tokens[index]} at {index} of {sample}, which its sampling mask does not have"
        )
    keys = (rows << 32) | ids  # one number per row and token id
    if len(np.unique(keys)) != len(keys):
        raise BadAnswer(f"sampling masks of {sample} that have a token twice")


def summary(value: Any) -> str:
    """Returns a few words about an answer, for messages."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return quoted(value)
