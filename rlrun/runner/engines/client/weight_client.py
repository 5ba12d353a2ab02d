"""The calls of one engine that change its weights, over SGLang's HTTP protocol.

A carrier composes an update from them (rlrun.runner.weights.carriers, `give` and `load` of its updates):

native engine     adopt
SGLang server     begin_update ─▶ send … ─▶ end_update        pauses before, compares and resumes after
                  read_folder                                 the same around files and deltas
                  load_adapters                               without a pause
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlrun.runner.contracts.errors import BadAnswer, EngineError
from rlrun.runner.contracts.weight_updates import (
    AdapterVersion,
    Checksums,
    GroupAddress,
    StoredWeights,
    UpdatedModels,
)
from rlrun.runner.engines.client.answer_fields import quoted, version_number
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.control import ControlClient
from rlrun.runner.engines.client.served_adapters import ServedAdapters
from rlrun.runner.engines.client.wire import group_body
from rlrun.runner.weights.carriers.bodies import TENSORS


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
        return await update.give(self)

    @property
    def models(self) -> UpdatedModels:
        """Which models of an SGLang server updates are for."""
        return self._models

    async def adopt(self, path: str, body: bytes) -> int:
        """Makes a native engine serve the weights that the body names; returns the version it answers."""
        return self._version_of(path, await self._connection.call("POST", path, body, self._control_timeout))

    async def begin_update(self, groups: Sequence[GroupAddress] = (), first_rank: int = 0) -> None:
        """Stops generating and prepares for buckets.

        `groups`: the process groups of a broadcast, which the server's processes join as ranks from
        `first_rank` on, unless they are members already. They leave all other groups.
        """
        await self.pause("retract")
        await self._leave(self._groups - {group.name for group in groups})
        for group in groups:
            if group.name not in self._groups:
                await self.send("/init_weights_update_group", group_body(group, first_rank))
                self._groups.add(group.name)
        await self._begin(self._models)

    async def send(self, path: str, body: bytes) -> None:
        """Makes a call that must not reach the engine twice."""
        await self._connection.call("POST", path, body, self._control_timeout, safe=False)

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

    async def read_folder(
        self, path: str, bodies: Sequence[bytes], deltas: Sequence[bytes], checksums: Checksums | None
    ) -> int:
        """Pauses, makes these calls, then those of deltas as updates of the served model alone, compares and
        resumes; returns the version.
        """
        await self.pause("retract")
        for body in bodies:
            await self.send(path, body)
        for delta in deltas:
            await self._begin("target")
            await self.send(TENSORS, delta)
            await self._post("/end_weight_update", {})
        return await self._serve(checksums)

    async def load_adapters(self, update: AdapterVersion, path: str, body: bytes) -> int:
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

        async def load() -> None:
            raw = await self._connection.call("POST", path, body, self._control_timeout, safe=False)
            answer = self._table(path, raw)
            if not answer.get("success"):
                raise EngineError(f"{self.name}{path} refused: {answer.get('error_message')}")

        await self._adapters.load(update, load)
        return update.version

    async def leave_groups(self) -> None:
        """Makes the server leave its process groups, as far as it still answers."""
        await self._leave(self._groups)

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


def check_checksums(url: str, sent: Checksums, answer: Any) -> None:
    """Raises EngineError, naming the first tensor that differs or is missing.

    `answer`: the value of `ranks` in the server's answer to `/weights_checker`. Raises BadAnswer if it
    does not contain checksums.
    """
    by_rank = _checksums_by_rank(answer)
    for rank, expected in enumerate(sent.ranks):
        reported = by_rank.get(rank, {})
        wrong = [name for name, checksum in expected.items() if reported.get(name) != checksum]
        if wrong:
            what = "holds other bytes than were sent for" if wrong[0] in reported else "does not hold"
            more = f", and {len(wrong) - 1} more of {len(expected)} tensors compared" if wrong[1:] else ""
            raise EngineError(f"engine {url} {what} {wrong[0]} (rank {rank}){more}")


def _checksums_by_rank(answer: Any) -> Mapping[int, Mapping[str, Any]]:
    """Returns the checksums of each tensor-parallel rank, by name of the tensor."""
    try:
        return {info["parallelism_info"][0]["tp_rank"]: dict(info["checksums"]) for info in answer or []}
    except (KeyError, IndexError, TypeError, ValueError):
        raise BadAnswer(f"{quoted(answer)} instead of checksums by rank") from None
