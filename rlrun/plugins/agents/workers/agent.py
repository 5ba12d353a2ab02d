"""Offers executions as tasks over HTTP: workers elsewhere lease them, and give back what became of them.

execution ──task──▶ Leases ◀── POST /tasks/lease ───────── worker ──▶ the policy's endpoint, by the task's key
execution ◀─result─ Leases ◀── POST /tasks/LEASE/result ── worker
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rlrun.models.json_files import parse_json
from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.agents.workers.leases import AnotherResult, LeaseGone, Leases
from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError
from rlrun.plugins.http_guard import Guard, is_loopback
from rlrun.plugins.rollouts.agent.address import address_in, check_address
from rlrun.specs.problems.messages import describe_errors
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)
_MAX_BODY = 16 << 20
_MAX_WAIT = 60.0
Info = Mapping[str, Any]
Body = TypeVar("Body", bound=Section)


class WorkersParams(Section):
    """Where workers ask for tasks, and when one counts as lost."""

    host: Annotated[str, AfterValidator(check_address)] = "127.0.0.1"
    """The address at which tasks are offered: an IP address of the driver's host, or a network
    (`10.0.0.0/8`) in which that host has exactly one address. Workers also ask the policy, at
    `rollout.function.host`."""
    port: int = Field(default=8790, ge=1024, le=65535)
    """The port at which tasks are offered."""
    key: str | None = None
    """The key that workers send as `Authorization: Bearer KEY`, as `${env:NAME}`. None: no key, which only
    the loopback interface allows."""
    lease_timeout: float = Field(default=60.0, gt=0)
    """Seconds without a sign of life after which a worker is lost, and its execution runs again on another
    (`fault_tolerance.execution_retries`)."""

    @model_validator(mode="after")
    def _guarded(self) -> "WorkersParams":
        if self.key is None and not is_loopback(self.host):
            raise ValueError(
                f"tasks at {self.host} need a key, since whoever takes one can ask the policy: add `key = "
                '"${env:WORKERS_KEY}"`'
            )
        return self


class _Lease(Section):
    """The body of `POST /tasks/lease`."""

    worker: str = Field(default="a worker", min_length=1, max_length=200)
    wait: float = Field(default=20.0, ge=0, le=_MAX_WAIT)
    """Seconds to wait for a task."""


class _Result(Section):
    """The body of `POST /tasks/LEASE/result`."""

    info: dict[str, Any] = Field(default_factory=dict)
    """What a command would print: JSON values for rewards and the saved samples."""


class _Failed(Section):
    """The body of `POST /tasks/LEASE/failed`."""

    error: str
    failure: Failure = Failure.ERROR
    """An infrastructure's failure lets the execution run again; `policy` has it trained with `reward`."""
    reward: float = Field(default=0.0, allow_inf_nan=False)

    def as_error(self) -> Exception:
        """Returns the error of the execution."""
        if self.failure is Failure.POLICY:
            return PolicyError(self.error, self.reward)
        if self.failure.is_infrastructure:
            return InfrastructureError(self.error, self.failure)
        return RuntimeError(self.error)


class Workers:
    """Leaves each execution to a worker elsewhere, which leases it over HTTP and gives a result back.

    A worker asks the policy at the address and with the key of its task, so that its tokens are recorded as
    those of every agent; it may also give trajectories of its own (docs/agents.md). A task has one result.
    """

    Params = WorkersParams
    api_version = 1

    def __init__(self, params: WorkersParams) -> None:
        """Raises ValueError if this host has no address where tasks are to be offered."""
        self.params = params
        self._guard = Guard(address_in(params.host), params.key)
        self._leases: Leases[AgentTask, Info] | None = None
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def run(self, task: AgentTask) -> Info:
        """Returns what the worker noted. Raises its error, or InfrastructureError if it is lost."""
        async with self._starting:
            if self._leases is None:
                self._leases = await self._start()
        return await self._leases.result_of(task)

    async def close(self) -> None:
        """Offers no tasks any more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _start(self) -> Leases[AgentTask, Info]:
        """Begins to offer tasks. Raises ValueError if the port is in use."""
        from aiohttp import web

        leases: Leases[AgentTask, Info] = Leases(self.params.lease_timeout, asyncio.get_running_loop().time)
        app = web.Application(
            client_max_size=_MAX_BODY, middlewares=[web.middleware(partial(_answer, self._guard))]
        )
        app.router.add_post("/tasks/lease", partial(_lease, leases))
        app.router.add_post("/tasks/{lease}/alive", partial(_alive, leases))
        app.router.add_post("/tasks/{lease}/result", partial(_result, leases))
        app.router.add_post("/tasks/{lease}/failed", partial(_failed, leases))
        app.router.add_get("/tasks", partial(_counts, leases))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._guard.address, self.params.port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise ValueError(
                f"tasks cannot be offered at {self._guard.address}, port {self.params.port}: {error}; choose "
                "another rollout.function.agent.port"
            ) from error
        self._runner = runner
        logger.info("workers lease tasks at http://%s:%s", self._guard.address, self.params.port)
        return leases


async def _answer(
    guard: Guard, request: "web.Request", handler: "Callable[[web.Request], Awaitable[web.StreamResponse]]"
) -> "web.StreamResponse":
    """Answers a request, or says why it is refused."""
    refusal = guard.refusal(request.method, request.path, request.headers)
    if refusal is not None:
        return _json({"error": refusal.message}, refusal.status)
    try:
        return await handler(request)
    except LeaseGone:
        message = "no worker has this lease: it ran out, or the job does not need its result any more"
        return _json({"error": message}, 410)
    except AnotherResult:
        return _json({"error": "this lease has another result already"}, 409)
    except ValueError as error:
        return _json({"error": str(error)}, 422)


def _read(model: type[Body], body: bytes) -> Body:
    """Returns the body of a request. Raises ValueError with what is wrong."""
    values = parse_json(body)
    if not isinstance(values, dict):
        raise ValueError("the body must be a JSON object")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(describe_errors(error, model, values)) from None


async def _lease(leases: Leases[AgentTask, Info], request: "web.Request") -> "web.StreamResponse":
    asked = _read(_Lease, await request.read())
    lease = await leases.lease(asked.worker, asked.wait)
    if lease is None:
        return _json({"lease": None})
    if request.transport is None or request.transport.is_closing():  # the worker has gone while it waited
        leases.take_back(lease)
        return _json({"lease": None})
    task = lease.task
    return _json(
        {"lease": lease.key, "seconds": leases.seconds, "task": {**task.as_json(), "api_key": task.api_key}}
    )


async def _alive(leases: Leases[AgentTask, Info], request: "web.Request") -> "web.StreamResponse":
    leases.renew(request.match_info["lease"])
    return _json({})


async def _result(leases: Leases[AgentTask, Info], request: "web.Request") -> "web.StreamResponse":
    body = await request.read()
    info = _read(_Result, body).info
    return _json({"new": leases.give(request.match_info["lease"], body, info)})


async def _failed(leases: Leases[AgentTask, Info], request: "web.Request") -> "web.StreamResponse":
    body = await request.read()
    error = _read(_Failed, body).as_error()
    return _json({"new": leases.fail(request.match_info["lease"], body, error)})


async def _counts(leases: Leases[AgentTask, Info], request: "web.Request") -> "web.StreamResponse":
    return _json(
        {
            "waiting": len(leases.waiting),
            "leased": {lease.worker: lease.task.id for lease in leases.leased.values()},
            "done": leases.num_done,
            "lost": leases.num_lost,
        }
    )


def _json(body: Mapping[str, Any], status: int = 200) -> "web.Response":
    from aiohttp import web

    return web.json_response(body, status=status, dumps=partial(json.dumps, default=str))
