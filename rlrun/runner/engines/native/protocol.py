"""Requests and answers of SGLang's HTTP protocol, the part the native engine serves."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.carriers import TensorSlot, WeightManifest
from rlrun.runner.engines.native.requests import Job, parse_sampling

_GENERATE_KEYS = {"input_ids", "sampling_params", "return_logprob", "rid", "stream", "logprob_start_len"}


def parse_generate(
    body: Mapping[str, Any], new_id: Callable[[], str], new_seed: Callable[[], int]
) -> tuple[list[Job], bool]:
    """The jobs of a /generate body, in order, and whether the answer is a list.

    `input_ids` is one prompt or a list of them; `sampling_params` and `rid` are single or one for each
    prompt. `n` samples of a prompt follow each other and are named `<rid>-<k>`. Raises ValueError naming the
    key.
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
    ids = _spread(body.get("rid"), len(prompts), str, new_id)
    jobs = []
    for prompt, sampling, name in zip(prompts, params, ids, strict=True):
        first = new_seed() if sampling.sampling_seed is None else sampling.sampling_seed
        for k in range(sampling.n):
            job_id = name if sampling.n == 1 else f"{name}-{k}"
            jobs.append(Job(job_id, prompt, sampling, _signed(first + k)))
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
    return {"output_ids": tokens, "meta_info": meta}


def parse_manifest(raw: Any) -> WeightManifest:
    """The `manifest` of a shared-memory weight update. Raises ValueError."""
    try:
        tensors = tuple(
            TensorSlot(str(t["name"]), t["dtype"], tuple(map(int, t["shape"])), int(t["offset"]))
            for t in raw["tensors"]
        )
        return WeightManifest(str(raw["segment"]), int(raw["size"]), int(raw["version"]), tensors)
    except (KeyError, TypeError) as error:
        raise ValueError(f"manifest: {error!r}; it needs segment, size, version and tensors") from None


def parse_version(raw: Any) -> int:
    """A `weight_version` of the protocol, a string there, as a number. Raises ValueError."""
    try:
        return int(raw)
    except (TypeError, ValueError):
        raise ValueError(f"weight_version {raw!r} is no whole number") from None


def _prompts(raw: Any) -> tuple[list[NDArray[np.int32]], bool]:
    if not isinstance(raw, list) or not raw:
        raise ValueError("input_ids must be a list of token ids, or a list of such lists, and not empty")
    single = not isinstance(raw[0], list)
    try:
        return [np.array(ids, np.int32).reshape(len(ids)) for ids in ([raw] if single else raw)], single
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"input_ids must hold whole numbers: {error}") from None


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
