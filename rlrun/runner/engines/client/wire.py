"""Writes requests in SGLang's JSON, without a Python step for each token; `parsing` reads the answers."""

import dataclasses
import pickle
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.contracts.weight_updates import (
    DELTA_LOADER,
    FolderAdapters,
    FolderWeights,
    GroupAddress,
    SegmentAdapters,
    SerializedWeights,
    ServerAdapters,
    WeightBucket,
    WeightDelta,
    WeightManifest,
)
from rlrun.runner.engines.client.parsing import sample_ids

UpdatedModels = Literal["target", "all"]
"""Which models of an SGLang server an update is for: the model that it serves, or also the draft model of
speculative decoding. SGLang loads tensors into a draft model by their names, also those of another model."""
_FLATTENED = "flattened_bucket"
"""SGLang's load format for tensors that are stored one after the other in one buffer of bytes."""


def adapter_name(version: int) -> str:
    """Returns the name under which a server has the adapters of a version."""
    return f"policy-v{version}"


def generate_body(
    requests: Sequence[GenerateRequest],
    *,
    experts: bool = False,
    adapters: int | None = None,
    packed: bool = False,
) -> bytes:
    """Returns the body of one /generate call for all samples of all requests, in order.

    `experts`: also ask which experts tokens are routed to. `adapters`: the version whose adapters the server
    applies; None: it serves the model alone. `packed`: ask for tokens and log-probs as base64.

    A request of n samples becomes n entries with the same prompt, because each sample has its own seed;
    engines share the prefill of equal prompts.
    """
    prompts: list[bytes] = []
    params: list[dict[str, Any]] = []
    ids: list[str] = []
    masked: list[bool] = []
    for request in requests:
        prompts += [_tokens(request)] * len(request.seeds)
        shared = _params(request)
        params += [{**shared, "sampling_seed": int(seed)} for seed in request.seeds]
        ids += sample_ids(request)
        masked += [request.returns_mask] * len(request.seeds)
    extras: dict[str, Any] = {"return_logprob": True}
    extras |= {"return_routed_experts": True} if experts else {}
    extras |= {"packed": True} if packed else {}
    extras |= {"return_sampling_mask": masked} if any(masked) else {}
    extras |= _adapters(adapters)
    extras |= _image_data([request.images for request in requests for _ in request.seeds])
    other_fields = orjson.dumps({"sampling_params": params, "rid": ids, **extras})
    return b'{"input_ids":[' + b",".join(prompts) + b"]," + other_fields[1:]


def sample_body(request: GenerateRequest, number: int) -> bytes:
    """Returns the body of a /generate call for sample `number` of a request."""
    params = {**_params(request), "sampling_seed": int(request.seeds[number])}
    sample_id = sample_ids(request)[number]
    fields = {"sampling_params": params, "rid": sample_id, "return_logprob": True}
    if request.images:
        fields["image_data"] = _encoded(request.images)
    other_fields = orjson.dumps(fields)
    return b'{"input_ids":' + _tokens(request) + b"," + other_fields[1:]


def score_body(
    sequences: Sequence[NDArray[np.int32]],
    adapters: int | str | None = None,
    images: Sequence[Sequence[PlacedImage]] = (),
) -> bytes:
    """Returns the body of a /generate call for the log-probs of these tokens, which generates nothing.

    `adapters`: see `generate_body`, or the name of another adapter of the model. `images`: those of each
    sequence; empty: no sequence has images.
    """
    own_images = images or [()] * len(sequences)
    ids = [_ids(collapse(tokens, own)) for tokens, own in zip(sequences, own_images, strict=True)]
    other_fields = orjson.dumps(
        {
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            **_adapters(adapters),
            **_image_data(own_images),
        }
    )
    return b'{"input_ids":[' + b",".join(ids) + b"]," + other_fields[1:]


def manifest_body(update: WeightManifest | SegmentAdapters) -> bytes:
    """Returns a weight update through shared memory: numbers and names only, nothing pickled."""
    if isinstance(update, SegmentAdapters):
        fields = {"manifest": update.adapters, "base": update.base, "scale": update.scale}
    else:
        fields = {"manifest": update}
    common = {"weight_version": str(update.version), "flush_cache": False}
    return orjson.dumps({"load_format": "shared_memory", **fields, **common})


def payload_body(weights: SerializedWeights, models: UpdatedModels) -> bytes:
    """Returns a weight update through torch's handles to a shared buffer."""
    return orjson.dumps(_handles(weights.payloads) | _update(weights.version, models))


def adapters_body(update: ServerAdapters) -> bytes:
    """Returns the adapters of a version as handles to a shared buffer."""
    return orjson.dumps(
        {
            "lora_name": adapter_name(update.version),
            "config_dict": update.config,
            "expected_checksums": update.checksums,
            **_handles(update.weights.payloads),
        }
    )


def adapter_folder_body(update: FolderAdapters) -> bytes:
    """Returns the adapters of a version as a folder."""
    return orjson.dumps({"lora_name": adapter_name(update.version), "lora_path": update.folder})


def folder_body(weights: FolderWeights) -> bytes:
    """Returns a weight update from a folder; for native engines with the deltas to apply."""
    body: dict[str, Any] = {"model_path": weights.folder} | _version(weights.version)
    if weights.processes is None and weights.full_version >= 0:
        body["deltas"] = [{"since": delta.since, "files": delta.files} for delta in weights.deltas]
    return orjson.dumps(body)


def delta_body(delta: WeightDelta, processes: int) -> bytes:
    """Returns a delta for an SGLang server: the names of its tensors, which have no elements, are paths.

    It is for the served model only: a draft model shares its embedding, which would change twice.
    """
    payload = b64encode(_pickled_names(delta.files)).decode()
    body = {"serialized_named_tensors": [payload] * processes, "load_format": DELTA_LOADER}
    return orjson.dumps(body | _update(delta.version, "target"))


def _pickled_names(names: Sequence[str]) -> bytes:
    """Returns a list of pairs of a name and an empty tensor as Python pickles it, without importing torch.

    `torch.ByteTensor` is among the few things that servers unpickle.
    """
    tensor = pickle.GLOBAL + b"torch\nByteTensor\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
    texts = [name.encode() for name in names]
    pairs = b"".join(
        pickle.BINUNICODE + len(text).to_bytes(4, "little") + text + tensor + pickle.TUPLE2 for text in texts
    )
    return pickle.PROTO + b"\x02" + pickle.EMPTY_LIST + pickle.MARK + pairs + pickle.APPENDS + pickle.STOP


def handles_body(bucket: WeightBucket, payloads: Sequence[str], models: UpdatedModels) -> bytes:
    """Returns one bucket of a weight update as handles, one for each of the server's processes."""
    return orjson.dumps(_handles(payloads) | _update(bucket.version, models))


def broadcast_body(bucket: WeightBucket, group: str, models: UpdatedModels) -> bytes:
    """Returns one bucket of a weight update as the description of a broadcast of bytes in a process group."""
    slots = bucket.tensors
    return orjson.dumps(
        {
            "names": [slot.name for slot in slots],
            "dtypes": [slot.dtype for slot in slots],
            "shapes": [slot.shape for slot in slots],
            "group_name": group,
            "load_format": _FLATTENED,
        }
        | _update(bucket.version, models)
    )


def group_body(group: GroupAddress, rank: int) -> bytes:
    """Returns the address of a process group; the first of the server's processes joins as rank `rank`."""
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


def _adapters(version: int | str | None) -> dict[str, str]:
    if version is None:
        return {}
    return {"lora_path": adapter_name(version) if isinstance(version, int) else version}


def _handles(payloads: Sequence[str]) -> dict[str, Any]:
    """`payloads`: one for each process of a server."""
    return {"serialized_named_tensors": payloads, "load_format": _FLATTENED}


def _update(version: int, models: UpdatedModels) -> dict[str, Any]:
    """Returns the fields of an update of an SGLang server through tensors."""
    return _version(version) | {"selector": models}


def _version(version: int) -> dict[str, Any]:
    """Returns the fields that every update of an SGLang server has.

    The update also drops the cached prefixes of the old weights: a separate /flush_cache would collect
    garbage too, which takes the server a second.
    """
    return {"weight_version": str(version), "flush_cache": True}


def _tokens(request: GenerateRequest) -> bytes:
    return _ids(collapse(request.tokens, request.images))


def _ids(tokens: NDArray[np.int32]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(tokens, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)


def _image_data(images: Sequence[Sequence[PlacedImage]]) -> dict[str, Any]:
    """Returns the images of each prompt; null for prompts without any, and nothing if none has images."""
    return {"image_data": [_encoded(own) or None for own in images]} if any(images) else {}


def _encoded(images: Sequence[PlacedImage]) -> list[str]:
    return [placed.image.data_url() for placed in images]


def _params(request: GenerateRequest) -> dict[str, Any]:
    sampling = dataclasses.asdict(request.sampling)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in sampling.items()}
