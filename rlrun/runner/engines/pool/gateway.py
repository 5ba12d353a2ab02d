"""Sends samples through a router of the sglang-router package, which chooses the engine of each sample.

    EnginePool ──sample──▶ Gateway ──▶ router process ──▶ one of the engines on its list
    EngineSlot ──up, down──▶ Gateway ──POST, DELETE /workers──▶ router's list

Only generation goes through the router; all other calls go to the engines directly.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import orjson

from rlrun.plugins.validation import needs_of
from rlrun.runner.contracts.carriers import GenerateRequest, Generation
from rlrun.runner.contracts.errors import BadAnswer, EngineError, JobError
from rlrun.runner.engines.client.answer_fields import json_object, read_json
from rlrun.runner.engines.client.connection import Connection
from rlrun.runner.engines.client.parsing import NO_LIMITS, ModelLimits, max_answer_bytes, parse_sample
from rlrun.runner.engines.client.wire import sample_body
from rlrun.runner.engines.pool.engine_slot import EngineSlot
from rlrun.runner.engines.pool.supervisor import RestartBudget
from rlrun.runner.engines.process.sglang_router import RouterServer, RouterSetup, RunningRouter
from rlrun.runner.host.background import in_background
from rlrun.runner.host.failures import gather_or_first_cause, log_end
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.problems.codes import Code
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.job import Spec

_ANSWER_SECONDS = 60.0
"""Time beyond a sample's own deadline for its engine to answer with the tokens so far."""
_LIST_SECONDS = 60.0
"""Deadline for the router to change its list of engines."""
_CALL_SECONDS = 30.0
_LIST_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0


class Gateway:
    """Runs the router's process, or uses one that runs already; keeps its list of engines, and sends it
    samples. `start` it before use.
    """

    def __init__(self, setup: RouterSetup, limits: ModelLimits = NO_LIMITS) -> None:
        """`limits`: the bounds that the engines' answers are checked against."""
        self._setup = setup
        self._limits = limits
        self._server: RouterServer | RunningRouter | None = None
        self._connection: Connection | None = None
        self._worker_ids: dict[str, str] = {}
        """The router's id of each engine on its list, by URL."""

    async def start(self, slots: Sequence[EngineSlot]) -> None:
        """Starts the router with these engines.

        Raises JobError, with the router's last error, if that fails.
        """
        try:
            await self._launch()
            if self._setup.url is not None:
                await self._forget([slot.client.url for slot in slots])
            await gather_or_first_cause([self._add(slot) for slot in slots])
        except (EngineError, TimeoutError, OSError) as error:
            raise self._failure(error) from error

    async def generate(self, request: GenerateRequest, number: int) -> Generation:
        """Returns sample `number` of a request. Raises EngineGone when its engine or the router is gone."""
        assert self._connection is not None, "`start` comes first"
        body, seconds = sample_body(request, number), self._setup.request_timeout
        max_bytes = max_answer_bytes([request], self._limits)
        raw = await self._connection.call("POST", "/generate", body, seconds, safe=False, max_bytes=max_bytes)
        try:
            return parse_sample(raw, request, number, self._limits)
        except BadAnswer as error:
            raise error.from_engine(f"an engine behind the {self._connection.name}", "/generate") from None

    async def supervise(
        self, slots: Sequence[EngineSlot], budget: RestartBudget, say: Callable[[str], None]
    ) -> None:
        """Keeps the list, and starts the router again when it dies.

        Never returns; raises JobError when the budget is used up.
        """
        while True:
            try:
                await gather_or_first_cause([self._watch(), *(self._keep_listed(slot) for slot in slots)])
            except (EngineError, TimeoutError) as error:
                failure = self._failure(error)
                if not budget.remaining:
                    raise failure from error
                budget.remaining -= 1
                say(f"{failure}; starting it again ({budget.remaining} restarts left)")
            await self.start([slot for slot in slots if slot.up.is_set()])

    async def close(self) -> None:
        """Ends the router, or takes the engines off the list of one that runs already."""
        if self._connection is not None:
            if self._setup.url is not None:
                with suppress(EngineError, TimeoutError):
                    await asyncio.gather(*map(self._remove, list(self._worker_ids)))
            await self._connection.close()
        if self._server is not None:
            await in_background(self._server.stop)

    async def _launch(self) -> None:
        await self.close()
        self._worker_ids = {}
        url = self._setup.url
        self._server = RouterServer(self._setup) if url is None else RunningRouter(url, self._setup)
        self._server.launch()  # not in a worker thread: the router is killed when its thread ends
        url = await in_background(self._server.wait)
        self._connection = Connection(url, self._setup.api_key or None, "router")

    async def _watch(self) -> None:
        assert self._server is not None
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await in_background(self._server.check)

    async def _keep_listed(self, slot: EngineSlot) -> None:
        """Keeps this engine on the router's list while it is up. Never returns."""
        while True:
            await slot.up.wait()
            client = slot.client
            await self._add(slot)
            if slot.client is client:  # otherwise it was lost and readmitted while it was being added
                await slot.down.wait()
            await self._remove(client.url)

    async def _add(self, slot: EngineSlot) -> None:
        """Returns when the router lists this engine, or the engine is lost."""
        client = slot.client
        if client.url in self._worker_ids:
            return
        added = await self._call("POST", "/workers", {"url": client.url, "api_key": client.api_key})
        self._worker_ids[client.url] = added["worker_id"]
        await self._wait_for_list(
            lambda listed: client.url in listed or not slot.up.is_set(), f"add {client.url}"
        )

    async def _forget(self, urls: Collection[str]) -> None:
        """Removes engines at these addresses that an earlier job has left on the list of a running router."""
        listed = (await self._call("GET", "/workers"))["workers"]
        self._worker_ids = {worker["url"]: worker["id"] for worker in listed if worker["url"] in urls}
        await asyncio.gather(*map(self._remove, list(self._worker_ids)))

    async def _remove(self, url: str) -> None:
        """Returns when the router no longer lists this engine."""
        await self._call("DELETE", f"/workers/{self._worker_ids.pop(url)}")
        await self._wait_for_list(lambda listed: url not in listed, f"remove {url}")

    async def _wait_for_list(self, is_done: Callable[[set[str]], bool], change: str) -> None:
        """Returns when the router's list of healthy engines satisfies `is_done`.

        Raises TimeoutError, which names the change, after _LIST_SECONDS.
        """
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                while True:
                    answer = await self._call("GET", "/workers")
                    if is_done({worker["url"] for worker in answer["workers"] if worker["is_healthy"]}):
                        return
                    await asyncio.sleep(_LIST_POLL_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"the router did not {change} within {_LIST_SECONDS:g} s") from None

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert self._connection is not None
        raw = None if body is None else orjson.dumps(body)
        return dict(
            json_object(read_json(await self._connection.call(method, path, raw, _CALL_SECONDS)), path)
        )

    def _failure(self, error: Exception) -> JobError:
        """Returns the error that ends the job, with the end of the log of a router that the job started."""
        if self._setup.url is not None:
            return JobError(str(error), code=Code.PROCESS)
        return JobError(str(error), log_end(self._setup.log), code=Code.PROCESS)


def make_gateway(spec: Spec, model: ModelFiles, folder: RunFolder) -> Gateway | None:
    """Returns a gateway to the policy's engines if the spec asks for a router; None if the pool routes.

    `model`: the policy's files.
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
            api_key=secrets.token_hex(16) if engine.router_url is None else reveal(engine.api_key or ""),
            url=engine.router_url,
            request_timeout=answer_timeout(spec, needs_of(spec)) + _ANSWER_SECONDS,
            arguments=engine.sglang_router,
            environment=reveal(engine.environment),
            start_timeout=engine.start_timeout,
        ),
        ModelLimits.of(model.config()),
    )
