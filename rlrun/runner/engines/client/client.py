"""The client of an engine: SGLang's HTTP protocol, the same for a native engine and an SGLang server.

    GenerateRequest -> JSON -> POST /generate -> JSON -> Generation

Every call has a deadline; a generation is repeated only when it never reached the engine.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import (
    Checksums,
    FolderWeights,
    GenerateRequest,
    Generation,
    GroupAddress,
    SerializedWeights,
    WeightBucket,
    WeightManifest,
)
from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone
from rlrun.runner.engines.client.answer_fields import read_json, table, version_number
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.parsing import (
    NO_LIMITS,
    ModelLimits,
    most_bytes,
    most_score_bytes,
    parse_generations,
    parse_scores,
    sample_ids,
)
from rlrun.runner.engines.client.weight_check import compare
from rlrun.runner.engines.client.wire import (
    bucket_body,
    folder_body,
    generate_body,
    group_body,
    manifest_body,
    payload_body,
    score_body,
)

_SETTLE_SECONDS = 30.0
_SETTLE_PAUSE = 0.1
Tag = Literal["weights", "kv_cache"]
"""Of the memory that an engine gives away while it sleeps."""
_TENSORS = "/update_weights_from_tensor"
_DISK = "/update_weights_from_disk"
_BROADCAST = "/update_weights_from_distributed"
Answer = TypeVar("Answer")


class EngineClient:
    """One engine. Make and use it in one event loop; `close` it, or use it as an async context manager.

    Every method raises EngineError when the engine refuses (with its message), cannot be reached, fails, or
    answers with something else than it was asked for (BadAnswer); TimeoutError when its deadline passes.
    """

    def __init__(
        self,
        url: str,
        generate_timeout: float = 3600.0,
        control_timeout: float = 120.0,
        api_key: str | None = None,
        *,
        name: str = "engine",
        limits: ModelLimits = NO_LIMITS,
    ) -> None:
        """`generate_timeout`: seconds for a /generate call; `control_timeout`: for every other; `api_key`:
        where the engine asks for one; `name`: as messages call it; `limits`: what its answers are held to,
        and whether it is asked which experts tokens are routed to.
        """
        self._limits = limits
        self.vocabulary = limits.vocabulary
        self._connection = Connection(url, api_key, name)
        self.url, self.name = self._connection.url, self._connection.name
        self.api_key = api_key
        self._generate_timeout = generate_timeout
        self._control_timeout = control_timeout
        self._group: str | None = None

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """The n samples of one request, in the order of its seeds."""
        return (await self.generate_batch([request]))[0]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests in one call, so that they alone decide what runs together in the engine."""
        if not requests:
            return []
        body = generate_body(requests, experts=self._limits.experts is not None)
        most = most_bytes(requests, self._limits)
        raw = await self._generate(body, most, safe=False)
        return self._read("/generate", lambda: parse_generations(raw, requests, self._limits))

    async def abort(self, request: GenerateRequest) -> None:
        """End the samples of a request; it answers with what they have."""
        bodies = ({"rid": name} for name in sample_ids(request))
        await asyncio.gather(*(self._post("/abort_request", body) for body in bodies))

    async def score(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Log-probs `[T - 1]` of each sequence's own tokens from the second on, at temperature 1."""
        if not sequences:
            return []
        raw = await self._generate(score_body(sequences), most_score_bytes(sequences), safe=True)
        return self._read("/generate", lambda: parse_scores(raw, sequences))

    async def abort_all(self) -> None:
        """End every running request; each answers with what it has."""
        await self._post("/abort_request", {"abort_all": True})

    async def pause(self, mode: Literal["abort", "in_place", "retract"]) -> None:
        """Stop generating until `resume`.

        Updates of the weights need "retract": after an in-place pause SGLang keeps cached prefixes of the old
        weights, and serves new requests from them.
        """
        await self._post("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._post("/continue_generation", {})

    async def settle(self) -> None:
        """End what runs, and return once nothing does. TimeoutError where something goes on."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            await self.abort_all()
            try:
                return await self.flush_cache()
            except EngineGone:
                raise
            except EngineError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"engine {self.url} still generates {_SETTLE_SECONDS:g} s after it was told to abort"
                    ) from None
            await asyncio.sleep(_SETTLE_PAUSE)

    async def release_memory(self, tags: Sequence[Tag]) -> None:
        """Give the memory of weights or cache away. EngineError while requests run."""
        await self._occupation("release", tags)

    async def resume_memory(self, tags: Sequence[Tag]) -> None:
        """Have it again; weights have to be given anew."""
        await self._occupation("resume", tags)

    async def _occupation(self, verb: str, tags: Sequence[Tag]) -> None:
        body, path = orjson.dumps({"tags": list(tags)}), f"/{verb}_memory_occupation"
        await self._connection.call("POST", path, body, self._control_timeout, safe=False)

    async def flush_cache(self) -> None:
        """Forget cached prefixes. EngineError while requests run."""
        await self._post("/flush_cache", {})

    async def health(self) -> bool:
        """Whether the engine answers that it works; a refusal or no connection is False, not an error."""
        try:
            await self._connection.call("GET", "/health", None, self._control_timeout, attempts=1)
        except (EngineError, TimeoutError):
            return False
        return True

    async def model_info(self) -> Mapping[str, Any]:
        """What the engine serves; `weight_version` among it."""
        return await self.get("/model_info")

    async def get(self, path: str) -> Mapping[str, Any]:
        """What the engine says of itself at `path`."""
        return self._table(path, await self._connection.call("GET", path, None, self._control_timeout))

    def _read(self, path: str, parse: Callable[[], Answer]) -> Answer:
        """What `parse` makes of an answer; a BadAnswer that it raises names this engine."""
        try:
            return parse()
        except BadAnswer as error:
            raise error.from_engine(self.name, path) from None

    async def check_request(self, body: dict[str, Any]) -> None:
        """Send a /generate body; EngineError, with what the engine has against it, where it refuses."""
        await self._post("/generate", body)

    async def update_weights(self, update: WeightManifest | SerializedWeights | FolderWeights) -> int:
        """Serve new weights from the next forward pass on; returns their version.

        A native engine adopts them in shared memory. An SGLang server takes a copy, from there or from a
        folder; what runs goes on afterwards, its cache made anew. EngineError names a tensor that did not
        arrive as it was sent.
        """
        if isinstance(update, WeightManifest):
            raw = await self._connection.call("POST", _TENSORS, manifest_body(update), self._control_timeout)
            return self._version_of(_TENSORS, raw)
        if isinstance(update, FolderWeights):
            await self.pause("retract")
            await self._connection.call("POST", _DISK, folder_body(update), self._control_timeout, safe=False)
            return await self._serve(update.checksums)
        await self.begin_update()
        try:
            await self._connection.call(
                "POST", _TENSORS, payload_body(update), self._control_timeout, safe=False
            )
        except (EngineError, TimeoutError):
            await self.give_up_update()
            raise
        return await self.end_update(update.checksums)

    async def begin_update(self, group: GroupAddress | None = None, rank: int = 0) -> None:
        """Stop generating, and make ready for buckets; `group` is where to meet rank 0, as ranks from `rank`
        on.
        """
        await self.pause("retract")
        if group is not None and group.name != self._group:
            await self.leave_group()
            body = group_body(group, rank)
            await self._connection.call(
                "POST", "/init_weights_update_group", body, self._control_timeout, safe=False
            )
            self._group = group.name
        await self._post("/begin_weight_update", {})

    async def load_bucket(self, bucket: WeightBucket) -> None:
        """Take over some tensors, from shared memory or from the group that was met."""
        path = _TENSORS if bucket.payloads else _BROADCAST
        body = bucket_body(bucket, self._group)
        await self._connection.call("POST", path, body, self._control_timeout, safe=False)

    async def end_update(self, checksums: Checksums | None) -> int:
        """Serve what was loaded; its version. EngineError names a tensor that is not what it should be."""
        await self._post("/end_weight_update", {})
        return await self._serve(checksums)

    async def give_up_update(self) -> None:
        """Leave an update that failed, as far as the engine still can; it stays paused."""
        with suppress(EngineError, TimeoutError):
            await self._post("/end_weight_update", {})
        await self.leave_group()

    async def leave_group(self) -> None:
        """Leave the group that was met; fine where there is none, or the engine is gone."""
        name, self._group = self._group, None
        if name is not None:
            with suppress(EngineError, TimeoutError):
                await self._post("/destroy_weights_update_group", {"group_name": name})

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _serve(self, checksums: Checksums | None) -> int:
        """Compare, and go on generating; the version that is served."""
        if checksums is not None:
            body = {"action": "checksum", "skip_tensor_list": checksums.skipped_names}
            raw = await self._post("/weights_checker", body)
            ranks = self._table("/weights_checker", raw).get("ranks")
            self._read("/weights_checker", lambda: compare(self.url, checksums, ranks))
        await self.resume()
        return await self._version()

    async def _version(self) -> int:
        """Of the weights that the engine says it serves."""
        path = "/model_info"
        return self._version_of(path, await self._connection.call("GET", path, None, self._control_timeout))

    def _version_of(self, path: str, raw: bytes) -> int:
        return self._read(path, lambda: version_number(table(read_json(raw), "it").get("weight_version")))

    def _table(self, path: str, raw: bytes) -> Mapping[str, Any]:
        return self._read(path, lambda: table(read_json(raw), "it"))

    async def _generate(self, body: bytes, most: int, *, safe: bool) -> bytes:
        seconds = self._generate_timeout
        return await self._connection.call("POST", "/generate", body, seconds, safe=safe, most=most)

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        return await self._connection.call("POST", path, orjson.dumps(body), self._control_timeout)
