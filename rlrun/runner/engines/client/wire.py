"""Writes requests in SGLang's JSON, without a Python step for each token; `parsing` reads the answers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.contracts.weight_updates import GroupAddress
from rlrun.runner.engines.client.parsing import sample_ids
from rlrun.runner.weights.carriers.bodies import adapter_name


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
    *,
    starts: Sequence[int] = (),
    num_top: int = 0,
) -> bytes:
    """Returns the body of a /generate call for the log-probs of these tokens, which generates nothing.

    `adapters`: see `generate_body`, or the name of another adapter of the model. `images`: those of each
    sequence; empty: no sequence has images. `starts`: where in each sequence the scores begin; empty: at 0.
    `num_top`: how many of the most probable tokens are asked for at each position.
    """
    own_images = images or [()] * len(sequences)
    ids = [_ids(collapse(tokens, own)) for tokens, own in zip(sequences, own_images, strict=True)]
    other_fields = orjson.dumps(
        {
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": list(starts) or 0,
            **({"top_logprobs_num": num_top} if num_top else {}),
            **_adapters(adapters),
            **_image_data(own_images),
        }
    )
    return b'{"input_ids":[' + b",".join(ids) + b"]," + other_fields[1:]


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
