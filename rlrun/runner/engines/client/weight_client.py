"""Gives one engine new weights, over SGLang's HTTP protocol.

native engine     POST /update_weights_from_tensor (a manifest): adopts a shared-memory segment, or merges
                  the adapters in one

SGLang server     pause ─▶ begin ─▶ load every bucket, or all tensors ─▶ end ─▶ compare ─▶ resume
  buckets           begin_update, load_bucket …, end_update             called by pool.transfer
  whole model       update_weights does the same with one "bucket"
  folder            update_weights: pause, POST /update_weights_from_disk, compare, resume
  deltas            the same, and then each delta as tensors, which a loader of ours applies in the server
  adapters          update_weights: POST /load_lora_adapter_from_tensors, or /load_lora_adapter (a folder),
                    without a pause
"""

from collections.abc import Sequence
from contextlib import suppress

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.weight_updates import (
    Checksums,
    FolderAdapters,
    FolderWeights,
    GroupAddress,
    SegmentAdapters,
    ServerAdapters,
    StoredWeights,
    WeightBucket,
    WeightManifest,
)
from rlrun.runner.engines.client.answer_fields import version_number
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.control import ControlClient
from rlrun.runner.engines.client.served_adapters import ServedAdapters
from rlrun.runner.engines.client.weight_check import check_checksums
from rlrun.runner.engines.client.wire import (
    UpdatedModels,
    adapter_folder_body,
    adapters_body,
    broadcast_body,
    delta_body,
    folder_body,
    group_body,
    handles_body,
    manifest_body,
    payload_body,
)

_TENSORS = "/update_weights_from_tensor"
_DISK = "/update_weights_from_disk"
_BROADCAST = "/update_weights_from_distributed"
_ADAPTERS = "/load_lora_adapter_from_tensors"
_ADAPTER_FOLDER = "/load_lora_adapter"


class WeightClient(ControlClient):
    """The part of an engine's client that changes its weights. Errors are those of ControlClient."""

    def __init__(self, connection: Connection, timeout: float, models: UpdatedModels = "target") -> None:
        """`timeout`: seconds for each call. `models`: which models of an SGLang server updates are for."""
        super().__init__(connection, timeout)
        self._models = models
        self._groups: set[str] = set()
        """Names of the process groups that the server has joined."""
        self._adapters = ServedAdapters(self._post, self.name)
        self._has_compared_base = False

    async def update_weights(self, update: StoredWeights) -> int:
        """Makes the engine serve stored weights from its next forward pass on; returns their version.

        A native engine adopts them in shared memory, or merges adapters into its model. An SGLang server
        copies them; requests that run continue afterwards with their cache computed again, and requests that
        run with adapters keep these to their end. EngineError names a tensor that did not arrive as sent.
        """
        if isinstance(update, ServerAdapters | FolderAdapters):
            return await self._load_adapters(update)
        if isinstance(update, WeightManifest | SegmentAdapters):
            raw = await self._connection.call("POST", _TENSORS, manifest_body(update), self._control_timeout)
            return self._version_of(_TENSORS, raw)
        if isinstance(update, FolderWeights):
            return await self._read_folder(update)
        await self.begin_update()
        try:
            await self._send(_TENSORS, payload_body(update, self._models))
        except (EngineError, TimeoutError):
            await self.give_up_update()
            raise
        return await self.end_update(update.checksums)

    async def begin_update(self, groups: Sequence[GroupAddress] = (), first_rank: int = 0) -> None:
        """Stops generating and prepares for buckets.

        `groups`: the process groups of a broadcast, which the server's processes join as ranks from
        `first_rank` on, unless they are members already. They leave all other groups.
        """
        await self.pause("retract")
        await self._leave(self._groups - {group.name for group in groups})
        for group in groups:
            if group.name not in self._groups:
                await self._send("/init_weights_update_group", group_body(group, first_rank))
                self._groups.add(group.name)
        await self._begin(self._models)

    async def load_bucket(self, bucket: WeightBucket, payloads: Sequence[str]) -> None:
        """Loads the tensors of one bucket from shared buffers; `payloads`: one for each of its processes."""
        await self._send(_TENSORS, handles_body(bucket, payloads, self._models))

    async def receive_bucket(self, bucket: WeightBucket, group: str) -> None:
        """Receives the tensors of one bucket, which is broadcast in a process group, and loads them."""
        await self._send(_BROADCAST, broadcast_body(bucket, group, self._models))

    async def end_update(self, checksums: Checksums | None) -> int:
        """Makes the engine serve what was loaded; returns the version.

        EngineError names a tensor whose checksum differs from what was sent.
        """
        await self._post("/end_weight_update", {})
        return await self._serve(checksums)

    async def give_up_update(self) -> None:
        """Ends an update that failed, as far as the engine still answers; the engine stays paused."""
        with suppress(EngineError, TimeoutError):
            await self._post("/end_weight_update", {})
        await self.leave_groups()

    async def leave_groups(self) -> None:
        """Makes the server leave its process groups, as far as it still answers."""
        await self._leave(self._groups)

    async def _read_folder(self, update: FolderWeights) -> int:
        """Makes the engine read the weights in a folder, then apply the deltas after them."""
        await self.pause("retract")
        if update.processes is None:
            await self._send(_DISK, folder_body(update))
            return await self._serve(update.checksums)
        if update.folder is not None:
            await self._send(_DISK, folder_body(update))
        for delta in update.deltas:
            await self._begin("target")
            await self._send(_TENSORS, delta_body(delta, update.processes))
            await self._post("/end_weight_update", {})
        return await self._serve(update.checksums)

    async def _load_adapters(self, update: ServerAdapters | FolderAdapters) -> int:
        """Makes adapters those of later requests; returns their version.

        The first time, the server's frozen model is compared with the trainer's.
        """
        if update.base is not None and not self._has_compared_base:
            try:
                await self._compare(update.base)
            except EngineError as error:
                raise EngineError(
                    f"{error}: its model is not the one whose adapters are trained. If trainer and engines "
                    "hold it in another precision, make engine.dtype that of the model, or set "
                    'engine.lora_sync = "merged"'
                ) from error
            self._has_compared_base = True

        if isinstance(update, FolderAdapters):
            path, body = _ADAPTER_FOLDER, adapter_folder_body(update)
        else:
            path, body = _ADAPTERS, adapters_body(update)

        async def send() -> None:
            raw = await self._connection.call("POST", path, body, self._control_timeout, safe=False)
            answer = self._table(path, raw)
            if not answer.get("success"):
                raise EngineError(f"{self.name}{path} refused: {answer.get('error_message')}")

        await self._adapters.load(update, send)
        return update.version

    async def close(self) -> None:
        """Closes the connections."""
        await self._adapters.close()
        await super().close()

    async def _begin(self, models: UpdatedModels) -> None:
        await self._post("/begin_weight_update", {"selector": models})

    async def _leave(self, names: set[str]) -> None:
        self._groups = self._groups - names
        for name in sorted(names):
            with suppress(EngineError, TimeoutError):
                await self._post("/destroy_weights_update_group", {"group_name": name})

    async def _send(self, path: str, body: bytes) -> None:
        """Makes a call that must not reach the engine twice."""
        await self._connection.call("POST", path, body, self._control_timeout, safe=False)

    async def _serve(self, checksums: Checksums | None) -> int:
        """Compares the checksums, resumes generating, and returns the version that the engine reports."""
        if checksums is not None:
            await self._compare(checksums)
        await self.resume()
        path = "/model_info"
        return self._version_of(path, await self._connection.call("GET", path, None, self._control_timeout))

    async def _compare(self, checksums: Checksums) -> None:
        """Raises EngineError, naming a tensor, where the server's tensors have other checksums."""
        path = "/weights_checker"
        body = {"action": "checksum", "skip_tensor_list": checksums.skipped_names, "selector": "target"}
        ranks = self._table(path, await self._post(path, body)).get("ranks")
        self._read(path, lambda: check_checksums(self.url, checksums, ranks))

    def _version_of(self, path: str, raw: bytes) -> int:
        """Returns the weight version in an answer."""
        version = self._table(path, raw).get("weight_version")
        return self._read(path, lambda: version_number(version))
