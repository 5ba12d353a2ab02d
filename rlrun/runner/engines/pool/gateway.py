"""The way to engines by a router of the sglang-router package: it chooses who generates, a sample at a time.

samples ──▶ router ──▶ one of the engines on its list      all but generation goes to engines directly
an engine is found, lost ──▶ put on the list, taken off
"""

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import BadAnswer, EngineError, JobError
from rlrun.runner.engines.client.answer_fields import read_json, table
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.parsing import NO_LIMITS, ModelLimits, most_bytes, parse_sample
from rlrun.runner.engines.client.wire import sample_body
from rlrun.runner.engines.pool.engine_slot import EngineSlot
from rlrun.runner.engines.pool.supervisor import Budget
from rlrun.runner.engines.process.sglang_router import RouterServer, RouterSetup
from rlrun.runner.host.background import in_background
from rlrun.runner.host.failures import gather_or_first_cause, log_end
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.job import Spec

_ANSWER_SECONDS = 60.0
"""Beyond a sample's own deadline, for its engine to answer with what it has."""
_LIST_SECONDS = 60.0
"""Deadline for the router to have changed its list."""
_CALL_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_WATCH_SECONDS = 1.0


class Gateway:
    """The router: its process, its list, and samples by way of it. `start` it first, and `close` it."""

    def __init__(self, setup: RouterSetup, limits: ModelLimits = NO_LIMITS) -> None:
        """`limits`: what the answers of the engines are held to."""
        self._setup = setup
        self._limits = limits
        self._server: RouterServer | None = None
        self._connection: Connection | None = None
        self._names: dict[str, str] = {}
        """What the router calls the engines on its list, by URL."""

    async def start(self, seats: Sequence[EngineSlot]) -> None:
        """Start it, and give it these engines. JobError, with its own last error, if it does not come up."""
        try:
            await self._launch()
            await gather_or_first_cause([self._put_on(seat) for seat in seats])
        except (EngineError, TimeoutError, OSError) as error:
            raise self._failure(error) from error

    async def generate(self, request: GenerateRequest, number: int) -> Generation:
        """Sample `number` of a request. EngineGone: the engine that it chose is gone, or it is itself."""
        assert self._connection is not None, "started first"
        body, seconds = sample_body(request, number), self._setup.request_timeout
        most = most_bytes([request], self._limits)
        raw = await self._connection.call("POST", "/generate", body, seconds, safe=False, most=most)
        try:
            return parse_sample(raw, request, number, self._limits)
        except BadAnswer as error:
            raise error.from_engine(f"an engine behind the {self._connection.name}", "/generate") from None

    async def keep(self, seats: Sequence[EngineSlot], budget: Budget, say: Callable[[str], None]) -> None:
        """Return never: keep its list, and start it again when it dies. JobError when no restart is left."""
        while True:
            try:
                await gather_or_first_cause([self._watch(), *(self._keep_listed(seat) for seat in seats)])
            except (EngineError, TimeoutError) as error:
                failure = self._failure(error)
                if not budget.left:
                    raise failure from error
                budget.left -= 1
                say(f"{failure}; starting it again ({budget.left} restarts left)")
            await self.start([seat for seat in seats if seat.up.is_set()])

    async def close(self) -> None:
        """End it."""
        if self._connection is not None:
            await self._connection.close()
        if self._server is not None:
            await in_background(self._server.stop)

    async def _launch(self) -> None:
        await self.close()
        self._names = {}
        self._server = RouterServer(self._setup)
        self._server.launch()  # in this thread: the router ends with the one that starts it
        url = await in_background(self._server.wait)
        self._connection = Connection(url, self._setup.api_key, "router")

    async def _watch(self) -> None:
        assert self._server is not None
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await in_background(self._server.check)

    async def _keep_listed(self, seat: EngineSlot) -> None:
        while True:
            await seat.up.wait()
            client = seat.client
            await self._put_on(seat)
            if seat.client is client:  # else it was lost, and found again, meanwhile
                await seat.down.wait()
            await self._take_off(client.url)

    async def _put_on(self, seat: EngineSlot) -> None:
        """Return when the router knows this engine, or the engine is lost."""
        client = seat.client
        if client.url in self._names:
            return
        added = await self._call("POST", "/workers", {"url": client.url, "api_key": client.api_key})
        self._names[client.url] = added["worker_id"]
        await self._until(lambda listed: client.url in listed or not seat.up.is_set(), f"take {client.url}")

    async def _take_off(self, url: str) -> None:
        """Return when the router does not know this engine any more."""
        await self._call("DELETE", f"/workers/{self._names.pop(url)}")
        await self._until(lambda listed: url not in listed, f"forget {url}")

    async def _until(self, so: Callable[[set[str]], bool], what: str) -> None:
        """Return when its list of engines is so. TimeoutError where it does not get there."""
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                while True:
                    answer = await self._call("GET", "/workers")
                    if so({worker["url"] for worker in answer["workers"] if worker["is_healthy"]}):
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"the router did not {what} within {_LIST_SECONDS:g} s") from None

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert self._connection is not None
        raw = None if body is None else orjson.dumps(body)
        return dict(table(read_json(await self._connection.call(method, path, raw, _CALL_SECONDS)), path))

    def _failure(self, error: Exception) -> JobError:
        """What ends the job, with the end of the router's log."""
        return JobError(str(error), log_end(self._setup.log))


def gateway_of(spec: Spec, model: ModelFiles, folder: RunFolder) -> Gateway | None:
    """The way to the engines of the policy, whose files are `model`, that the spec asks for; None where the
    pool chooses them itself.
    """
    engine = spec.engine
    if engine.type != "sglang" or engine.router == "rlrun":
        return None
    log = folder.logs / "router.log"
    return Gateway(
        RouterSetup(
            python=engine.python or sys.executable,
            log=log,
            secrets=log.with_suffix(".key.json"),
            api_key=secrets.token_hex(16),
            request_timeout=answer_timeout(spec) + _ANSWER_SECONDS,
            arguments=engine.sglang_router,
            environment=reveal(engine.environment),
            start_timeout=engine.start_timeout,
        ),
        ModelLimits.of(model.config()),
    )
