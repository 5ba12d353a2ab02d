"""Requests and answers of the part of SGLang's HTTP protocol that the native engine serves."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import RequestOptions
from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, parse_sampling

MAX_SAMPLES = 65_536
"""Most samples that one call may request."""
MAX_NAME = 256
"""Most characters of a `rid`."""
_GENERATE_KEYS = {
    *RequestOptions.__dataclass_fields__,
    *("image_data", "input_ids", "packed", "return_logprob", "rid", "sampling_params", "stream"),
}


def parse_generate_request(
    body: Mapping[str, Any], new_id: Callable[[], str], new_seed: Callable[[], int]
) -> tuple[list[SampleInProgress], bool]:
    """Returns the samples of a /generate request, in order, and whether the answer is a list.

    `input_ids` is one prompt or a list of prompts; `sampling_params`, `rid` and the fields of
    `RequestOptions` are one value for all prompts or a list with one value per prompt. The `n` samples of a
    prompt follow each other and are named `<rid>-<k>`. Raises ValueError with the key that is wrong.
    """
    unknown = sorted(set(body) - _GENERATE_KEYS)
    if unknown:
        raise ValueError(
            f"unknown {', '.join(unknown)}; the native engine supports {', '.join(sorted(_GENERATE_KEYS))}"
        )
    if body.get("stream"):
        raise ValueError(
            "stream is not supported: the native engine answers when a sample is done; remove it"
        )
    prompts, single = _prompts(body.get("input_ids"))
    params = [parse_sampling(raw) for raw in _spread(body, "sampling_params", len(prompts), dict, repeat({}))]
    options = _options(body, len(prompts))
    ids = _spread(body, "rid", len(prompts), str, iter(new_id, None))
    if (num_samples := sum(sampling.n for sampling in params)) > MAX_SAMPLES:
        raise ValueError(
            f"{num_samples} samples in one call; at most {MAX_SAMPLES}: lower n, or send several calls"
        )
    if any(len(name) > MAX_NAME for name in ids):
        raise ValueError(f"a rid has at most {MAX_NAME} characters")
    samples = []
    for prompt, sampling, asked, name in zip(prompts, params, options, ids, strict=True):
        _check_options(asked, sampling, len(prompt))
        first = new_seed() if sampling.sampling_seed is None else sampling.sampling_seed
        for k in range(sampling.n):
            sample_id = name if sampling.n == 1 else f"{name}-{k}"
            seed = _signed(first + k)
            samples.append(SampleInProgress(sample_id, prompt, sampling, seed, options=asked))
    return samples, not (single and len(samples) == 1)


def sample_answer(sample: SampleInProgress, body: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Returns the answer for one sample of a request; `version` is its weight version if it never ran.

    With `packed` in the request's body, which SGLang does not have, token ids and their log-probs are base64
    of int32 and float32 numbers: JSON with a number for each takes ten times as long to write and to read.
    """
    spans = [{"version": str(version), "start": start, "end": end} for version, start, end in sample.spans]
    meta: dict[str, Any] = {
        "id": sample.id,
        "finish_reason": sample.finish,
        "prompt_tokens": len(sample.prompt),
        "completion_tokens": len(sample.tokens),
        "cached_tokens": sample.cached_tokens,
        "spec_num_proposed_drafts": sample.drafted,
        "spec_num_correct_drafts": sample.accepted,
        "spec_verify_ct": max(len(sample.tokens) - 1 - sample.accepted, 0),
        "num_retractions": sample.retractions,
        "weight_version": str(sample.starts[-1][0] if sample.starts else version),
        "weight_versions": spans,
    }
    if sample.prompt_log_probs is not None:
        first = max(sample.options.logprob_start_len, 0)
        log_probs_or_none = [None, *sample.prompt_log_probs[first:].tolist()]
        meta["input_token_logprobs"] = list(
            zip(log_probs_or_none, sample.prompt[first:].tolist(), repeat(None), strict=False)
        )
        meta |= _top_log_probs(sample, first)
    tokens = _packed(sample.tokens, "<i4") if body.get("packed") else sample.tokens.tolist()
    if body.get("return_logprob") and body.get("packed"):
        meta["output_token_logprobs"] = _packed(sample.log_probs, "<f4")
    elif body.get("return_logprob"):
        meta["output_token_logprobs"] = list(
            zip(sample.log_probs.tolist(), tokens, repeat(None), strict=False)
        )
    if sample.options.return_sampling_mask:
        meta["output_token_sampling_mask"] = sample.masks
        meta["output_token_sampling_logprobs"] = sample.mask_log_probs
        meta["output_token_sampling_mask_length"] = len(sample.masks)
    if sample.experts:
        meta["routed_experts"] = _packed(np.concatenate(sample.experts), "<i4")
    return {"output_ids": tokens, "meta_info": meta}


def _options(body: Mapping[str, Any], count: int) -> list[RequestOptions]:
    """Returns the options of each prompt."""
    columns = [
        _spread(body, item.name, count, item.type, repeat(item.default)) for item in fields(RequestOptions)
    ]
    return [RequestOptions(*values) for values in zip(*columns, strict=True)]


def _check_options(options: RequestOptions, sampling: SamplingParams, prompt_length: int) -> None:
    """Raises ValueError if the options do not go with the rest of the request."""
    if options.return_sampling_mask and not sampling.cuts_vocabulary:
        raise ValueError(
            "return_sampling_mask records the tokens within top_k or top_p: set one of them, or remove it"
        )
    if not -1 <= options.logprob_start_len < max(prompt_length, 1):
        raise ValueError(
            f"logprob_start_len {options.logprob_start_len} of a prompt of {prompt_length} tokens: lower it"
        )
    if options.top_logprobs_num < 0:
        raise ValueError(f"top_logprobs_num {options.top_logprobs_num} is not a whole number, at least 0")


def _top_log_probs(sample: SampleInProgress, first: int) -> dict[str, Any]:
    """Returns the most probable tokens at each position after `first`, as SGLang writes them."""
    if sample.top_ids is None or sample.top_log_probs is None:
        return {}
    num_top = sample.options.top_logprobs_num
    values, ids = (each[first:, :num_top].tolist() for each in (sample.top_log_probs, sample.top_ids))
    rows = [
        list(zip(of_token, ids_of_token, repeat(None), strict=False))
        for of_token, ids_of_token in zip(values, ids, strict=True)
    ]
    return {"input_top_logprobs": [None, *rows]}


def _prompts(raw: Any) -> tuple[list[NDArray[np.int32]], bool]:
    """Returns the prompts, and whether `input_ids` was a single one."""
    if not isinstance(raw, list) or not raw:
        raise ValueError("input_ids must be a list of token ids, or a list of such lists, and not empty")
    single = not isinstance(raw[0], list)
    return [_prompt(ids) for ids in ([raw] if single else raw)], single


def _prompt(ids: Any) -> NDArray[np.int32]:
    try:
        array = np.array(ids)
    except (ValueError, OverflowError):  # lists of different lengths
        array = np.array(None)
    if not isinstance(ids, list) or array.ndim != 1 or (ids and array.dtype.kind != "i"):
        raise ValueError("input_ids must hold whole numbers")
    if ids and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError("input_ids must hold whole numbers of 32 bits")
    return array.astype(np.int32)


def _spread(
    body: Mapping[str, Any], key: str, count: int, kind: Any, default: Iterator[Any]
) -> Sequence[Any]:
    """Returns one value of type `kind` per prompt, from a single value or a list."""
    raw = body.get(key)
    if raw is None:
        return list(islice(default, count))
    values = raw if isinstance(raw, list) else [raw] * count
    if len(values) != count or not all(
        isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for value in values
    ):
        name = getattr(kind, "__name__", kind)
        raise ValueError(f"{key}: expected one {name}, or a list of {count}, one per prompt")
    return values


def _packed(array: NDArray[Any], dtype: str) -> str:
    """Returns base64 of an array's numbers."""
    return b64encode(array.astype(dtype, copy=False).tobytes()).decode()


def _signed(seed: int) -> int:
    """Returns the low 64 bits of a seed as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
