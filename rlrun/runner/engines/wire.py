"""Requests and answers as bytes: SGLang's JSON, written and read without a Python step for each token."""

import dataclasses
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.plugins.types import VersionSpan
from rlrun.runner.carriers import (
    FolderWeights,
    GenerateRequest,
    Generation,
    GroupAddress,
    SerializedWeights,
    WeightBucket,
    WeightManifest,
)
from rlrun.runner.errors import EngineError

_FLATTENED = "flattened_bucket"
"""How an SGLang server is told that tensors lie one after the other in one buffer of bytes."""


def generate_body(requests: Sequence[GenerateRequest], *, experts: bool = False) -> bytes:
    """One /generate call for all samples of all requests, in order; `experts`: and what they are routed to.

    A request of n samples is n entries with the same prompt, since each sample has its own seed; engines
    share the prefill of equal prompts.
    """
    prompts: list[bytes] = []
    params: list[dict[str, Any]] = []
    ids: list[str] = []
    for request in requests:
        prompts += [_tokens(request)] * len(request.seeds)
        shared = _params(request)
        params += [{**shared, "sampling_seed": int(seed)} for seed in request.seeds]
        ids += sample_ids(request)
    wanted = {"return_logprob": True} | ({"return_routed_experts": True} if experts else {})
    rest = orjson.dumps({"sampling_params": params, "rid": ids, **wanted})
    return b'{"input_ids":[' + b",".join(prompts) + b"]," + rest[1:]


def sample_body(request: GenerateRequest, number: int) -> bytes:
    """One /generate call for one sample of a request."""
    params = {**_params(request), "sampling_seed": int(request.seeds[number])}
    name = sample_ids(request)[number]
    rest = orjson.dumps({"sampling_params": params, "rid": name, "return_logprob": True})
    return b'{"input_ids":' + _tokens(request) + b"," + rest[1:]


def sample_ids(request: GenerateRequest) -> list[str]:
    """How the samples of a request are called on the wire."""
    return [f"{request.id}-{k}" for k in range(len(request.seeds))]


def score_body(sequences: Sequence[NDArray[np.int32]]) -> bytes:
    """One /generate call that generates nothing: the log-probs of these tokens, at temperature 1."""
    ids = [
        orjson.dumps(np.ascontiguousarray(one, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)
        for one in sequences
    ]
    rest = orjson.dumps(
        {
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
    )
    return b'{"input_ids":[' + b",".join(ids) + b"]," + rest[1:]


def parse_scores(raw: bytes, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
    """The answer to `score_body`: `[T - 1]` log-probs of each sequence's tokens from the second on.

    Raises EngineError when it is something else.
    """
    answers = orjson.loads(raw)
    answers = answers if isinstance(answers, list) else [answers]
    if len(answers) != len(sequences):
        raise EngineError(f"log-probs of {len(sequences)} sequences were asked for, not {len(answers)}")
    return [_given_log_probs(answer, one) for answer, one in zip(answers, sequences, strict=True)]


def parse_generations(raw: bytes, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
    """The answer to `generate_body`, by request. Raises EngineError when it is something else."""
    answers = orjson.loads(raw)
    wanted = sum(len(request.seeds) for request in requests)
    if not isinstance(answers, list) or len(answers) != wanted:
        raise EngineError(f"{wanted} samples were asked for; the answer is {raw[:200]!r}")
    samples = iter(answers)
    return [[_generation(next(samples)) for _ in request.seeds] for request in requests]


def parse_sample(raw: bytes) -> Generation:
    """The answer to `sample_body`. Raises EngineError when it is something else."""
    answer = orjson.loads(raw)
    if not isinstance(answer, dict):
        raise EngineError(f"one sample was asked for; the answer is {raw[:200]!r}")
    return _generation(answer)


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
    """A weight update by torch's handles."""
    return orjson.dumps(_handles(weights.payloads) | _update(weights.version))


def folder_body(weights: FolderWeights) -> bytes:
    """A weight update from a folder."""
    return orjson.dumps({"model_path": weights.folder} | _update(weights.version))


def bucket_body(bucket: WeightBucket, group: str | None) -> bytes:
    """One bucket of a weight update: handles, or what is about to come as one broadcast of bytes."""
    update = _update(bucket.version)
    if bucket.payloads:
        return orjson.dumps(_handles(bucket.payloads) | update)
    slots = bucket.tensors
    return orjson.dumps(
        {
            "names": [slot.name for slot in slots],
            "dtypes": [slot.dtype for slot in slots],
            "shapes": [slot.shape for slot in slots],
            "group_name": group,
            "load_format": _FLATTENED,
        }
        | update
    )


def group_body(group: GroupAddress, rank: int) -> bytes:
    """Where a server's processes meet trainer rank 0; the first of them is rank `rank`."""
    return orjson.dumps(
        {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": rank,
            "world_size": group.size,
            "group_name": group.name,
            "backend": group.backend,
        }
    )


def _handles(payloads: Sequence[str]) -> dict[str, Any]:
    """One for each process of a server."""
    return {"serialized_named_tensors": payloads, "load_format": _FLATTENED}


def _update(version: int) -> dict[str, Any]:
    """What every update of an SGLang server says. Prefixes that the old weights made are forgotten with it:
    a call of its own would also collect garbage, which takes the server a second.
    """
    return {"weight_version": str(version), "flush_cache": True}


def _tokens(request: GenerateRequest) -> bytes:
    return orjson.dumps(np.ascontiguousarray(request.tokens), option=orjson.OPT_SERIALIZE_NUMPY)


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
    spans, experts = _spans(meta, len(tokens)), _experts(meta, len(tokens))
    return Generation(tokens, log_probs, cast(Any, finish), spans, _cached(meta), experts)


def _experts(meta: Mapping[str, Any], length: int) -> NDArray[np.int16] | None:
    """base64 of int32 `[prompt + response - 1, layers, K]`, in the order of the tokens."""
    encoded = meta.get("routed_experts")
    if encoded is None or not length:
        return None
    flat = np.frombuffer(b64decode(encoded), np.int32)
    rows = int(meta["prompt_tokens"]) + length - 1
    if not rows or len(flat) % rows:
        raise EngineError(f"sample {meta.get('id')}: experts of {len(flat)} numbers for {rows} tokens")
    return flat.reshape(rows, -1).astype(np.int16)


def _given_log_probs(answer: Mapping[str, Any], tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    entries = answer["meta_info"].get("input_token_logprobs") or []
    if [entry[1] for entry in entries] != tokens.tolist():
        raise EngineError(
            f"log-probs of {len(tokens)} tokens were asked for; the answer has {len(entries)} of others"
        )
    return np.array([entry[0] for entry in entries[1:]], np.float32)


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
