"""Writes requests in SGLang's JSON, without a Python step for each token; `parsing` reads the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.plugins.images import PlacedImage
from rlrun.runner.contracts.carriers import NO_OPTIONS, GenerateRequest
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.contracts.weight_updates import GroupAddress
from rlrun.runner.engines.client.parsing import sample_ids
from rlrun.runner.engines.client.rooms import Rooms
from rlrun.runner.weights.carriers.bodies import adapter_name

_OPTIONS = asdict(NO_OPTIONS)
_DEFAULTS = {"image_data": None, **_OPTIONS}


def generate_body(
    requests: Sequence[GenerateRequest],
    *,
    experts: bool = False,
    adapters: int | None = None,
    packed: bool = False,
    rooms: Rooms | None = None,
) -> bytes:
    """Returns the body of one /generate call for all samples of all requests, in order.

    `experts`: also ask which experts tokens are routed to. `adapters`: the version whose adapters the server
    applies; None: it serves the model alone. `packed`: ask for tokens and log-probs as base64.
    `rooms`: where a prefill and a decode server meet, which both get the call.

    A request of n samples becomes n entries with the same prompt, because each sample has its own seed;
    engines share the prefill of equal prompts.
    """
    prompts: list[bytes] = []
    params: list[dict[str, Any]] = []
    ids: list[str] = []
    for request in requests:
        prompts += [_tokens(request)] * len(request.seeds)
        params += _params(request, request.seeds)
        ids += sample_ids(request)
    repeats = [len(request.seeds) for request in requests]
    return orjson.dumps(
        {
            "input_ids": orjson.Fragment(b"[" + b",".join(prompts) + b"]"),
            "sampling_params": params,
            "rid": ids,
            **{
                key: list(chain.from_iterable(map(repeat, values, repeats)))
                for key, values in _given_fields(requests).items()
            },
            "return_logprob": True,
            **({"return_routed_experts": True} if experts else {}),
            **({"packed": True} if packed else {}),
            **({} if rooms is None else rooms.fields),
            **_adapters(adapters),
        }
    )


def sample_body(request: GenerateRequest, number: int) -> bytes:
    """Returns the body of a /generate call for sample `number` of a request."""
    [params] = _params(request, [request.seeds[number]])
    return orjson.dumps(
        {
            "input_ids": orjson.Fragment(_tokens(request)),
            "sampling_params": params,
            "rid": sample_ids(request)[number],
            **{key: value for key, [value] in _given_fields([request]).items()},
            "return_logprob": True,
        }
    )


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
    return orjson.dumps(
        {
            "input_ids": orjson.Fragment(b"[" + b",".join(ids) + b"]"),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": list(starts) or 0,
            **({"top_logprobs_num": num_top} if num_top else {}),
            **_adapters(adapters),
            **_given({"image_data": [_encoded(own) for own in own_images]}),
        }
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


def _tokens(request: GenerateRequest) -> bytes:
    return _ids(collapse(request.tokens, request.images))


def _ids(tokens: NDArray[np.int32]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(tokens, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)


def _params(request: GenerateRequest, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the sampling parameters of the samples with these seeds."""
    shared = asdict(request.sampling)
    return [{**shared, "sampling_seed": int(seed)} for seed in seeds]


def _given_fields(requests: Sequence[GenerateRequest]) -> dict[str, list[Any]]:
    """Returns the images and options of the requests, without fields that no request sets.

    Each field has one value per request.
    """
    columns = {key: [getattr(request.options, key) for request in requests] for key in _OPTIONS}
    columns["image_data"] = [_encoded(request.images) for request in requests]
    return _given(columns)


def _given(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Returns the columns without those that only have their field's default."""
    return {key: values for key, values in columns.items() if values.count(_DEFAULTS[key]) < len(values)}


def _encoded(images: Sequence[PlacedImage]) -> list[str] | None:
    return [placed.image.data_url() for placed in images] or None
