"""Requests and answers of SGLang's HTTP protocol, the part the native engine serves."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TensorSlot, WeightManifest
from rlrun.runner.engines.native.engine.requests import Job, parse_sampling
from rlrun.runner.weights.tensor_slots import ITEM_SIZE

MAX_SAMPLES = 65_536
"""Samples that one call may ask for."""
MAX_NAME = 256
"""Characters of a `rid`."""
_GENERATE_KEYS = {
    "input_ids",
    "sampling_params",
    "return_logprob",
    "return_sampling_mask",
    "rid",
    "stream",
    "logprob_start_len",
}


def parse_generate(
    body: Mapping[str, Any], new_id: Callable[[], str], new_seed: Callable[[], int]
) -> tuple[list[Job], bool]:
    """The jobs of a /generate body, in order, and whether the answer is a list.

    `input_ids` is one prompt or a list of them; `sampling_params`, `return_sampling_mask` and `rid` are
    single or one for each prompt. `n` samples of a prompt follow each other and are named `<rid>-<k>`. Raises
    ValueError naming the key.
    """
    unknown = sorted(set(body) - _GENERATE_KEYS)
    if unknown:
        raise ValueError(
            f"unknown {', '.join(unknown)}; the native engine knows {', '.join(sorted(_GENERATE_KEYS))}"
        )
    if body.get("stream"):
        raise ValueError("stream: the native engine answers when a sample is done; leave it out")
    prompts, single = _prompts(body.get("input_ids"))
    params = [parse_sampling(raw) for raw in _spread(body.get("sampling_params") or {}, len(prompts), dict)]
    masked = _spread(body.get("return_sampling_mask") or False, len(prompts), bool)
    ids = _spread(body.get("rid"), len(prompts), str, new_id)
    if (samples := sum(sampling.n for sampling in params)) > MAX_SAMPLES:
        raise ValueError(
            f"{samples} samples in one call; at most {MAX_SAMPLES}: lower n, or ask several times"
        )
    if any(len(name) > MAX_NAME for name in ids):
        raise ValueError(f"a rid has at most {MAX_NAME} characters")
    if any(wanted and one.top_p >= 1 and one.top_k < 1 for wanted, one in zip(masked, params, strict=True)):
        raise ValueError(
            "return_sampling_mask records what top_k or top_p leave: set one of them, or remove it"
        )
    jobs = []
    for prompt, sampling, mask, name in zip(prompts, params, masked, ids, strict=True):
        first = new_seed() if sampling.sampling_seed is None else sampling.sampling_seed
        for k in range(sampling.n):
            job_id = name if sampling.n == 1 else f"{name}-{k}"
            jobs.append(Job(job_id, prompt, sampling, _signed(first + k), masked=mask))
    return jobs, not (single and len(jobs) == 1)


def answer(job: Job, log_probs: bool, version: int) -> dict[str, Any]:
    """One sample's answer; `version` of the weights where it never ran."""
    spans = [{"version": str(version), "start": start, "end": end} for version, start, end in job.spans]
    meta: dict[str, Any] = {
        "id": job.id,
        "finish_reason": job.finish,
        "prompt_tokens": len(job.prompt),
        "completion_tokens": len(job.tokens),
        "cached_tokens": job.cached_tokens,
        "weight_version": str(job.starts[-1][0] if job.starts else version),
        "weight_versions": spans,
    }
    if job.prompt_log_probs is not None:
        given = [None, *job.prompt_log_probs.tolist()]
        meta["input_token_logprobs"] = list(zip(given, job.prompt.tolist(), repeat(None), strict=False))
    tokens = job.tokens.tolist()
    if log_probs:
        meta["output_token_logprobs"] = list(zip(job.log_probs.tolist(), tokens, repeat(None), strict=False))
    if job.masked:
        meta["output_token_sampling_mask"] = job.masks
        meta["output_token_sampling_logprobs"] = job.mask_log_probs
        meta["output_token_sampling_mask_length"] = len(job.masks)
    return {"output_ids": tokens, "meta_info": meta}


def parse_manifest(raw: Any) -> WeightManifest:
    """The `manifest` of a shared-memory weight update. Raises ValueError."""
    try:
        tensors = tuple(
            TensorSlot(str(t["name"]), t["dtype"], tuple(map(int, t["shape"])), int(t["offset"]))
            for t in raw["tensors"]
        )
        manifest = WeightManifest(
            str(raw["segment"]), int(raw["size"]), parse_version(raw["version"]), tensors
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"manifest: {error!r}; it needs segment, size, version and tensors") from None
    for slot in tensors:
        if slot.dtype not in ITEM_SIZE or min(slot.shape, default=0) < 0:
            raise ValueError(f"manifest: {slot.name} cannot be {slot.dtype} of shape {slot.shape}")
    if not 0 < manifest.size < 2**63:
        raise ValueError(f"manifest: a segment cannot have {manifest.size} bytes")
    return manifest


def parse_version(raw: Any) -> int:
    """A `weight_version` of the protocol, a string there, as a number. Raises ValueError."""
    try:
        version = int(raw)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"weight_version {raw!r} is not a whole number") from None
    if not 0 <= version < 2**53:
        raise ValueError(f"weight_version {raw!r} is not between 0 and 2**53")
    return version


def _prompts(raw: Any) -> tuple[list[NDArray[np.int32]], bool]:
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


def _spread(raw: Any, count: int, kind: type, default: Callable[[], Any] | None = None) -> Sequence[Any]:
    """One value for each prompt, from a single one or a list."""
    if raw is None and default is not None:
        return [default() for _ in range(count)]
    values = raw if isinstance(raw, list) else [raw] * count
    if len(values) != count or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"expected one {kind.__name__}, or a list of {count}: one for each prompt")
    return values


def _signed(seed: int) -> int:
    """The low 64 bits of a seed as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
