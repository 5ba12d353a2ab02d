"""The job's part of a Ray cluster: the resources reserved for it, and its processes from start to end.

    driver ── start / join ──▶ Ray ── placement group ──▶ bundles
       │                                                    ├─ trainer 0 … n   (TrainerActor)
       └──────────────── calls, answers, pings ─────────────┴─ engine 0 … m    (EngineActor)

Only the modules `ray*` of this folder talk to Ray.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import psutil

from rlrun.runner.cluster.fork_server import CAN_FORK, ForkServer
from rlrun.runner.cluster.placement import BundleSlot, Placement
from rlrun.runner.cluster.ray_environment import PROCESS_VARIABLES, ray
from rlrun.runner.cluster.ray_health import (
    JoinedCluster,
    dead_server,
    give_up_ray,
    note_sessions,
    servers_log,
)
from rlrun.runner.cluster.ray_process import ASIDE, Process, Request
from rlrun.runner.cluster.ray_reservation import Reservation
from rlrun.runner.cluster.ray_session import join, start_here, take_back_signals
from rlrun.runner.cluster.ray_thread import RayThread
from rlrun.runner.cluster.scratch import Scratch
from rlrun.runner.contracts.errors import MachinesFailed
from rlrun.runner.host.background import cancel_all, in_background
from rlrun.runner.host.child_processes import children, end_or_kill, kill
from rlrun.runner.host.failures import ProcessFailure
from rlrun.runner.host.segment_files import remove_segments_of
from rlrun.specs.local_code import allowance
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.cluster import ClusterSpec

Result = TypeVar("Result")

_CLOSE_SECONDS = 5.0
_GRACE_SECONDS = 1.0
"""How long a call to Ray that nobody waits for may take to end before it is given up."""
_END_SECONDS = 60.0
"""Deadline for Ray to end, on a busy host."""
_LOOK_SECONDS = 1.0
"""Time between two checks whether Ray is alive."""


class Cluster:
    """A Ray cluster that the job started or joined, and the job's processes on it."""

    def __init__(
        self, spec: ClusterSpec, placement: Placement, scratch: Scratch, node_timeout: float = 0.0
    ) -> None:
        """`node_timeout`: how many seconds to wait for a node in place of a lost one."""
        self._spec = spec
        self._node_timeout = node_timeout
        self._waiting: asyncio.Future[None] | None = None
        self._fork_server: ForkServer | None = None
        self._scratch = scratch
        self.placement = placement
        self._thread = RayThread()
        where = f"the cluster at {spec.address}" if spec.address else "this host"
        self._reserved = Reservation(placement, where)
        self._children_before: set[psutil.Process] = set()
        self._processes: list[Process] = []
        self._joined: JoinedCluster | None = None
        self._lost: str | None = None
        self._replaced: list[Process] = []

    def note_processes(self) -> dict[str, Any]:
        """Returns the job's processes for state.json, and writes them down for the launch that cleans up
        after this one if it is killed.
        """
        pids = {process.name: process.pid for process in self._processes}
        if self.is_local:
            self._scratch.note(pids)
        return {"processes": pids}

    def process_groups(self) -> dict[int, str]:
        """Returns the role of each of the job's processes on this host, by its id."""
        here = self._processes if self.is_local else []
        return {process.pid: process.name.split()[0] for process in here if process.pid is not None}

    def peak_memory(self) -> dict[str, float]:
        """Returns the peak memory in bytes of the largest process of each role."""
        peaks: dict[str, float] = {}
        for process in self._processes:
            role = process.name.split()[0]
            peaks[role] = max(peaks.get(role, 0.0), process.peak_memory)
        return peaks

    @property
    def is_local(self) -> bool:
        """Whether this job started Ray, on this host only."""
        return self._spec.address is None

    async def start(self, requests: Sequence[Request] = ()) -> None:
        """Starts Ray here, or joins the cluster at `cluster.address`, and reserves what the job needs.

        What the processes of `requests` import is imported meanwhile, where Ray starts here.

        Raises JobError if the cluster has less than the spec asks for, and MachinesFailed if it cannot be
        joined.
        """
        await self._thread.run(self._begin, requests)
        take_back_signals()
        await self._thread.run(self._reserved.make)
        await self._thread.run(self._reserved.look)

    async def launch(self, requests: Sequence[Request]) -> list[Process]:
        """Begins to start processes, all at once; calls to them wait until they run.

        Raises MachinesFailed if Ray is lost.
        """
        if self._lost is not None:  # the GCS would be asked where to start them, and would not answer
            raise MachinesFailed(self._lost)
        python = None
        if self._fork_server is not None and any(map(self._is_fork, requests)):
            python = await self._fork_server.executable()
        return await self._thread.run(self._launch, requests, python)

    def _launch(self, requests: Sequence[Request], python: str | None) -> list[Process]:
        """`python` is what Ray has to start instead of Python, for the processes that are forks."""
        reserved = self._reserved
        launched = [
            Process(
                request,
                self._actor(request, python if self._is_fork(request) else None),
                reserved.node(request.slot),
                reserved.reach(request.slot),
            )
            for request in requests
        ]
        self._processes += launched
        return launched

    async def replace(self, processes: Sequence[Process]) -> list[Process]:
        """Kills processes and begins to start new ones in their slots, when every slot has a node.

        Raises NodeLost if a node was lost and no other one takes its place in time.
        """
        self.end(processes)
        slots = [process.request.slot for process in processes]
        if not self.is_local and not all(map(self._reserved.is_elastic, slots)):
            await self._wait_for_nodes()
        return await self.launch([process.request for process in processes])

    def end(self, processes: Sequence[Process]) -> None:
        """Kills processes, whose slots remain reserved."""
        for process in processes:
            process.kill()
            self._processes.remove(process)
            self._replaced.append(process)
        if self.is_local:
            kill(process.pid for process in processes if process.pid is not None)

    def is_placed(self, slots: Sequence[BundleSlot]) -> bool:
        """Returns whether slots have nodes, so that processes can be launched in them: those of elastic
        engines may have none.
        """
        return all(map(self._reserved.is_placed, slots))

    async def has_room(self, slots: Sequence[BundleSlot]) -> bool:
        """Returns whether slots of an elastic engine have nodes that answer now; True for others, for which
        `replace` waits.
        """
        if self._lost is not None or not all(map(self._reserved.is_elastic, slots)):
            return self._lost is None
        return await in_background(self._reserved.has_room, slots)

    async def _wait_for_nodes(self) -> None:
        """Waits for all processes together, in a thread: Ray's calls block where Ray itself is lost."""
        if self._waiting is None or self._waiting.done():
            waiting = in_background(self._reserved.wait_for_nodes, self._node_timeout)
            self._waiting = asyncio.ensure_future(waiting)
        await asyncio.shield(self._waiting)

    async def diagnose(self, processes: Sequence[Process] | None = None) -> ProcessFailure | None:
        """Returns the failure of a process that is gone or unhealthy, which explains other failures.

        `processes`: those to check; None: all. A process that is only busy counts as healthy.
        """
        checked = self._processes if processes is None else processes
        pings = [process.call("ping", deadline=_CLOSE_SECONDS) for process in checked]
        answers = await asyncio.gather(*pings, return_exceptions=True)
        failures = (answer for answer in answers if isinstance(answer, ProcessFailure))
        return next((failure for failure in failures if failure.kind != "hung"), None)

    async def stacks(self) -> list[str]:
        """Makes every process write the stacks of its threads to its log; returns where each of them is."""
        places = await asyncio.gather(*(process.where() for process in self._processes))
        return [f"{process.name}: {place}" for process, place in zip(self._processes, places, strict=True)]

    async def lost(self) -> str:
        """Returns the cause when Ray no longer works."""
        while True:
            check = dead_server if self._joined is None else self._joined.lost
            if (cause := await in_background(check)) is not None:
                self._lost = cause
                return cause
            await asyncio.sleep(_LOOK_SECONDS)

    async def while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`. Raises MachinesFailed when Ray is lost before it is done."""
        working, losing = asyncio.ensure_future(work), asyncio.ensure_future(self.lost())
        try:
            await asyncio.wait([working, losing], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            details = servers_log(self._scratch.ray) if self.is_local else ""
            raise MachinesFailed(losing.result(), details)
        finally:
            await cancel_all([working, losing])

    async def close(self) -> None:
        """Ends every process, and Ray if the job started it; takes seconds, whatever state they are in."""
        if not await self._thread.is_free(_GRACE_SECONDS):
            await in_background(self._give_up)
            return
        running = [process for process in self._processes if process.pid is not None]
        closing = [process.call("close", deadline=_CLOSE_SECONDS) for process in running]
        await asyncio.gather(*closing, return_exceptions=True)
        ending = asyncio.ensure_future(self._thread.run(self._end))
        if await self._thread.is_free(_END_SECONDS):
            await ending
        else:
            await in_background(self._give_up)
        self._thread.stop()

    def _begin(self, requests: Sequence[Request]) -> None:
        if self._spec.address is not None:
            join(self._spec.address)
            self._joined = JoinedCluster(ray.get_runtime_context().gcs_address)
            return
        self._children_before = children()
        note_sessions(self._scratch.note_session)
        self._fork_server = self._start_fork_server(requests)
        start_here(ceil(self.placement.cpus), self._scratch.ray)

    def _start_fork_server(self, requests: Sequence[Request]) -> ForkServer | None:
        """Starts it for the first process that can be a fork, and for others that have the same variables."""
        forks = [request for request in requests if _can_be_fork(request)]
        if not forks or not CAN_FORK:
            return None
        modules = dict.fromkeys(request.kind.imports for request in forks if request.kind.imports)
        server = ForkServer(self._scratch.path, list(modules), self._environment(forks[0]))
        self._scratch.note_session(server.process.pid)
        return server

    def _is_fork(self, request: Request) -> bool:
        server = self._fork_server
        return server is not None and _can_be_fork(request) and server.suits(self._environment(request))

    def _environment(self, request: Request) -> dict[str, str]:
        plain, _ = variables_of(self._spec.environment)
        return PROCESS_VARIABLES | allowance() | dict(request.environment) | plain

    def _actor(self, request: Request, python: str | None) -> Any:
        _, secret = variables_of(self._spec.environment)
        options = {
            "num_cpus": request.slot.cpus,
            "num_gpus": request.slot.gpus,
            "max_restarts": 0,
            "enable_task_events": False,  # the variable in ray_environment has no effect on a joined cluster
            # the processes of a joined cluster have the environment of its start
            "runtime_env": {"env_vars": self._environment(request)}
            | ({} if python is None else {"py_executable": python}),
        }
        if request.kind.called_aside:
            actor = ray.remote(concurrency_groups={ASIDE: 1})(request.kind)
        else:
            actor = ray.remote(request.kind)
        return self._reserved.in_bundle(actor, request.slot.bundle, options).remote(str(request.log), secret)

    def _end(self) -> None:
        pids = self._pids_here()
        ray_processes = children() - self._children_before if self.is_local else set()
        if ray.is_initialized():
            for process in self._processes:
                process.kill()
            if not self.is_local and self._lost is None:
                self._reserved.give_back()
            ray.shutdown()
        if self._fork_server is not None:
            self._fork_server.close()
        end_or_kill(ray_processes)
        if self.is_local:
            kill(process.pid for process in self._processes if process.pid is not None)
        remove_segments_of(pids)

    def _give_up(self) -> None:
        """Kills everything that the job started on this host, without calling Ray."""
        give_up_ray()
        if self.is_local:
            end_or_kill(children() - self._children_before, wait=0.0)
            remove_segments_of([process.pid for process in self._processes if process.pid is not None])

    def _pids_here(self) -> list[int]:
        """Returns the ids of the job's processes on this host. Those of other hosts mean nothing here."""
        processes = [*self._processes, *self._replaced]
        if not self.is_local:
            own_address = ray.util.get_node_ip_address()
            processes = [process for process in processes if process.host == own_address]
        return [process.pid for process in processes if process.pid is not None]


def _can_be_fork(request: Request) -> bool:
    """Returns whether a process imports something beforehand, and uses no GPU."""
    return bool(request.kind.imports) and not request.slot.gpus


def variables_of(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the variables without secrets, and the values of those that refer to secrets.

    Raises ValueError with the name of a variable that is not set here.
    """
    revealed: dict[str, str] = reveal(environment)
    plain = {name: value for name, value in revealed.items() if value == environment[name]}
    return plain, {name: value for name, value in revealed.items() if name not in plain}
