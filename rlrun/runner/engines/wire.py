"""Requests and answers as bytes: SGLang's JSON, written and read without a Python step for each token."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import orjson

from rlrun.plugins.types import VersionSpan
from rlrun.runner.carriers import GenerateRequest, Generation, SerializedWeights, WeightManifest
from rlrun.runner.errors import EngineError


def generate_body(requests: Sequence[GenerateRequest]) -> bytes:
    """One /generate call for all samples of all requests, in order.

    A request of n samples is n entries with the same prompt, since each sample has its own seed; engines
    share the prefill of equal prompts.
    """
    prompts: list[bytes] = []
    params: list[dict[str, Any]] = []
    ids: list[str] = []
    for request in requests:
        prompt = orjson.dumps(np.ascontiguousarray(request.tokens), option=orjson.OPT_SERIALIZE_NUMPY)
        prompts += [prompt] * len(request.seeds)
        shared = _params(request)
        params += [{**shared, "sampling_seed": int(seed)} for seed in request.seeds]
        ids += [f"{request.id}-{k}" for k in range(len(request.seeds))]
    rest = orjson.dumps({"sampling_params": params, "rid": ids, "return_logprob": True})
    return b'{"input_ids":[' + b",".join(prompts) + b"]," + rest[1:]


def parse_generations(raw: bytes, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
    """The answer to `generate_body`, by request. Raises EngineError when it is something else."""
    answers = orjson.loads(raw)
    wanted = sum(len(request.seeds) for request in requests)
    if not isinstance(answers, list) or len(answers) != wanted:
        raise EngineError(f"{wanted} samples were asked for; the answer is {raw[:200]!r}")
    samples = iter(answers)
    return [[_generation(next(samples)) for _ in request.seeds] for request in requests]


def manifest_body(manifest: WeightManifest) -> bytes:
    """A weight update by shared memory; numbers and names only, nothing pickled."""
    return orjson.dumps(
        {
            "load_format": "shared_memory",
            "manifest": dataclasses.asdict(manifest),
            "weight_version": str(manifest.version),
            "flush_cache": False,
        }
    )


def payload_body(weights: SerializedWeights) -> bytes:
    """A weight update by torch's handles; the cache is flushed afterwards, when every bucket is in."""
    return orjson.dumps(
        {
            "serialized_named_tensors": weights.payloads,
            "weight_version": str(weights.version),
            "flush_cache": False,
        }
    )


def _params(request: GenerateRequest) -> dict[str, Any]:
    sampling = dataclasses.asdict(request.sampling)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in sampling.items()}


def _generation(answer: Mapping[str, Any]) -> Generation:
    meta = answer["meta_info"]
    finish = (meta.get("finish_reason") or {}).get("type")
    if finish not in ("stop", "length", "abort"):
        raise EngineError(f"sample {meta.get('id')}: finish_reason {meta.get('finish_reason')}")
    tokens = np.array(answer["output_ids"], np.int32)
    log_probs = np.array([entry[0] for entry in meta.get("output_token_logprobs") or ()], np.float32)
    if len(tokens) != len(log_probs):
        raise EngineError(f"sample {meta.get('id')}: {len(tokens)} tokens with {len(log_probs)} log-probs")
    return Generation(tokens, log_probs, cast(Any, finish), _spans(meta, len(tokens)), _cached(meta))


def _spans(meta: Mapping[str, Any], length: int) -> tuple[VersionSpan, ...]:
    spans = meta.get("weight_versions") or [
        {"version": meta.get("weight_version"), "start": 0, "end": length}
    ]
    return tuple(
        VersionSpan(version_number(span["version"]), span["start"], span["end"])
        for span in spans
        if span["end"] > span["start"]
    )


def version_number(raw: Any) -> int:
    """A weight version as a number; 0 for the name an SGLang server starts with ("default") and for none."""
    return int(raw) if str(raw).lstrip("-").isdigit() else 0


def _cached(meta: Mapping[str, Any]) -> int:
    return int(meta.get("cached_tokens") or 0)
