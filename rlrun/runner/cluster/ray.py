"""The only module that talks to Ray: a cluster for the job, its processes, and their end.

    driver ── start / join ──▶ Ray ── placement group ──▶ bundles
       │                                                    ├─ trainer 0 … n   (TrainerActor)
       └──────────────── calls, answers, pings ─────────────┴─ engine 0 … m    (EngineActor)

Ray is started in a thread that lives as long as the cluster: its processes are tied to the life of their
parent thread, so they end with the driver even when it is killed.
"""

import asyncio
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from rlrun.runner.background import in_time, to_its_end
from rlrun.runner.cluster.actors import EngineActor, SglangActor, TrainerActor, visible_gpus
from rlrun.runner.cluster.failures import Failure, ProcessFailure
from rlrun.runner.cluster.placement import Placement, Seat, reserved_bundles
from rlrun.runner.cluster.processes import children, end, kill
from rlrun.runner.errors import JobError
from rlrun.runner.weights.segment_files import remove_of
from rlrun.specs.cluster import ClusterSpec

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would let whatever else runs here go before our processes (nice 15).
    "RAY_worker_niceness": "0",
    # Bytes of an argument that travels with its call; a detour through the object store takes 2 ms.
    "RAY_max_direct_call_object_size": str(1 << 20),
    # Workers made ahead would lack our environment variables, and be made in vain.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})

import psutil  # noqa: E402
import ray  # noqa: E402  reads its environment when it is imported
from ray._private import ray_constants  # noqa: E402
from ray._private import worker as ray_worker  # noqa: E402
from ray.exceptions import RayActorError, RayError  # noqa: E402
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

logger = logging.getLogger(__name__)

_RESERVE_SECONDS = 60.0
_A_LITTLE = {"num_cpus": 0, "num_gpus": 0.01}
"""What a question takes of a bundle that nobody sits in yet."""
_PING_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_PASS_SECONDS = 4 * 3600.0
"""A ping may wait behind what the process is busy with."""
_PINGS = "pings"
"""The concurrency group of those that do not."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to start."""

    name: str
    """`trainer 0`, `engine 1`: as messages call it."""
    kind: type[TrainerActor] | type[EngineActor] | type[SglangActor]
    seat: Seat
    environment: Mapping[str, str]
    """Set before its interpreter starts."""
    log: Path


class Process:
    """One process of the job, as the driver sees it."""

    def __init__(self, request: Request, actor: Any, host: str, gpus: Sequence[str] = ()) -> None:
        self.request = request
        self.host = host
        """Address of its node."""
        self.gpus = tuple(gpus)
        """Ids of all GPUs that it may use, where its seat reaches over several; Ray tells it of one."""
        self.pid: int | None = None
        self.peak_memory = 0.0
        """Bytes, as of the last ping."""
        self._actor = actor

    @property
    def name(self) -> str:
        """As messages call it."""
        return self.request.name

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.request.log

    async def call(self, method: str, *args: Any, deadline: float) -> Any:
        """Run a method there; ProcessFailure when the process dies, the method raises, or does not end within
        `deadline` seconds.
        """
        called = getattr(self._actor, method)
        if method == "ping" and self.request.kind.pings_aside:
            called = called.options(concurrency_group=_PINGS)
        try:
            answer = await in_time(called.remote(*args), deadline)
        except TimeoutError:
            what = f"{method!r} did not end within {deadline:g} s"
            raise ProcessFailure(self.name, "hung", what, self.log) from None
        except RayActorError as death:
            raise ProcessFailure(self.name, "died", _why(death), self.log) from None
        except RayError as error:
            raise ProcessFailure(self.name, "raised", str(error).splitlines()[0], self.log) from error
        if isinstance(answer, Failure):
            raise ProcessFailure(self.name, "raised", answer.error, self.log, answer.errno)
        return answer

    def share(self, value: Any) -> Any:
        """Send a large argument ahead once, for several processes' calls."""
        return ray.put(value)

    async def watch(self, deadline: float = _PASS_SECONDS) -> None:
        """Return never; ProcessFailure as soon as the process is gone or not well, or says nothing for
        `deadline` seconds.
        """
        while True:
            await self.identify(deadline)
            await asyncio.sleep(_PING_SECONDS)

    async def identify(self, deadline: float) -> None:
        """Learn its process id and how much memory it has used."""
        self.pid, self.peak_memory = await self.call("ping", deadline=deadline)

    def kill(self) -> None:
        """End it at once."""
        ray.kill(self._actor, no_restart=True)


class Cluster:
    """A Ray cluster that is ours, or one that we joined, and the job's processes on it."""

    def __init__(self, spec: ClusterSpec, placement: Placement) -> None:
        self._spec = spec
        self.placement = placement
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._folder: Path | None = None
        self._group: Any = None
        self._stands: list[int] = []
        """The reserved bundle that stands for each planned one."""
        self._gpus: dict[int, str] = {}
        """Ids of the GPUs of planned bundles that seats reach over."""
        self._others: set[psutil.Process] = set()
        self._processes: list[Process] = []
        self._gone: list[int] = []
        """Ids of those that were replaced."""

    @property
    def traces(self) -> dict[str, Any]:
        """What to look for if this process is killed: the ids of the job's processes, and Ray's folder."""
        pids = {process.name: process.pid for process in self._processes}
        return {"processes": pids, "scratch": str(self._folder) if self._folder else None}

    def peak_memory(self) -> dict[str, float]:
        """Bytes of the largest process of each role."""
        peaks: dict[str, float] = {}
        for process in self._processes:
            role = process.name.split()[0]
            peaks[role] = max(peaks.get(role, 0.0), process.peak_memory)
        return peaks

    @property
    def is_local(self) -> bool:
        """Whether Ray is ours and on this host alone."""
        return self._spec.address is None

    async def start(self) -> None:
        """Start Ray here, or join the cluster at `cluster.address`, and reserve what the job needs.

        JobError where it cannot be joined, or has less than the spec asks for.
        """
        await self._in_thread(self._join if self._spec.address else self._start_here)
        _take_back_signals()
        self._check_resources()
        bundles = [
            {name: amount for name, amount in (("CPU", bundle.cpus), ("GPU", bundle.gpus)) if amount}
            for bundle in self.placement.bundles
        ]
        self._group = placement_group(bundles, strategy=self.placement.strategy)
        try:
            async with asyncio.timeout(_RESERVE_SECONDS):
                await self._group.ready()
        except TimeoutError:
            raise JobError(
                f"the cluster did not free {self._wanted()} within {_RESERVE_SECONDS:g} s; free are "
                f"{_amounts(ray.available_resources())}. Wait for other jobs to end, or ask for less"
            ) from None
        await self._in_thread(self._look_at_bundles)

    def launch(self, requests: Sequence[Request]) -> list[Process]:
        """Begin to start processes, all at once; their methods wait until they run."""
        made = [
            Process(request, self._actor(request), self._host(request.seat), self._reach(request.seat))
            for request in requests
        ]
        self._processes += made
        return made

    def replace(self, processes: Sequence[Process]) -> list[Process]:
        """Kill processes, and begin to start others in their places."""
        for process in processes:
            process.kill()
            self._processes.remove(process)
            self._gone += [process.pid] if process.pid is not None else []
        if self.is_local:
            kill(process.pid for process in processes if process.pid is not None)
        return self.launch([process.request for process in processes])

    async def diagnose(self, processes: Sequence[Process] | None = None) -> ProcessFailure | None:
        """The process that is gone or not well, if any, of these or of all: it explains whatever else failed.

        One that is merely busy is well.
        """
        asked = self._processes if processes is None else processes
        pings = [process.call("ping", deadline=_CLOSE_SECONDS) for process in asked]
        answers = await asyncio.gather(*pings, return_exceptions=True)
        failures = (answer for answer in answers if isinstance(answer, ProcessFailure))
        return next((failure for failure in failures if failure.kind != "hung"), None)

    async def close(self) -> None:
        """End every process, and Ray where it is ours; takes seconds, whatever state they are in."""
        up = [process for process in self._processes if process.pid is not None]
        closing = [process.call("close", deadline=_CLOSE_SECONDS) for process in up]
        await asyncio.gather(*closing, return_exceptions=True)
        await self._in_thread(self._end)
        self._thread.shutdown()

    def _start_here(self) -> None:
        _stay_on_loopback(True)
        # Ray asks whoever talks to it for a token, and would keep one in the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        self._others = children()
        self._folder = Path(tempfile.mkdtemp(prefix="rlrun-"))
        try:
            ray.init(
                address="local",
                num_cpus=ceil(self.placement.cpus),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(self._folder),
            )
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise JobError(f"Ray could not be started on this host: {error}") from error

    def _join(self) -> None:
        _stay_on_loopback(False)
        try:
            ray.init(address=self._spec.address, log_to_driver=False, logging_level=logging.ERROR)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise JobError(
                f"the Ray cluster at cluster.address = {self._spec.address!r} could not be joined: {error}; "
                "check the address, and RAY_AUTH_MODE and RAY_AUTH_TOKEN where the cluster asks for a token"
            ) from error

    def _check_resources(self) -> None:
        have = ray.cluster_resources()
        for name, wanted in (("GPU", self.placement.gpus), ("CPU", self.placement.cpus)):
            if wanted > have.get(name, 0.0):
                where = f"the cluster at {self._spec.address}" if self._spec.address else "this host"
                raise JobError(
                    f"the spec asks for {self._wanted()}, and {where} has {_amounts(have)}; lower "
                    "cluster.gpus_per_node, trainer.parallel or engine.count (see rlrun plan)"
                )

    def _wanted(self) -> str:
        return _amounts({"CPU": self.placement.cpus, "GPU": self.placement.gpus})

    def _look_at_bundles(self) -> None:
        """Find out which bundle is which, and the ids of GPUs that a seat of several reaches."""
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        try:
            self._stands = reserved_bundles(self.placement, [nodes[one] for one in sorted(nodes)])
        except ValueError as error:
            raise JobError(f"{error}; free whole nodes for the job, or lower engine.tensor") from None
        asked = sorted({one for seat in self.placement.wide for one in (seat.bundle, *seat.beside)})
        ids = [self._in_bundle(ray.remote(visible_gpus), one, _A_LITTLE).remote() for one in asked]
        try:
            self._gpus = dict(zip(asked, ray.get(ids, timeout=_RESERVE_SECONDS), strict=True))
        except RayError as error:
            raise JobError(f"the nodes did not say which GPUs were reserved: {error}") from error

    def _reach(self, seat: Seat) -> list[str]:
        return [self._gpus[one] for one in (seat.bundle, *seat.beside)] if seat.beside else []

    def _in_bundle(self, what: Any, bundle: int, share: Mapping[str, Any]) -> Any:
        """A remote function or class with that share of a planned bundle."""
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._stands[bundle]
        )
        return what.options(scheduling_strategy=strategy, **share)

    def _host(self, seat: Seat) -> str:
        node = placement_group_table(self._group)["bundles_to_node_id"][self._stands[seat.bundle]]
        return str(next(one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == node))

    def _actor(self, request: Request) -> Any:
        options = {
            "num_cpus": request.seat.cpus,
            "num_gpus": request.seat.gpus,
            "max_restarts": 0,
            "runtime_env": {"env_vars": dict(request.environment)},
        }
        if request.kind.pings_aside:
            actor = ray.remote(concurrency_groups={_PINGS: 1})(request.kind)
        else:
            actor = ray.remote(request.kind)
        return self._in_bundle(actor, request.seat.bundle, options).remote(str(request.log))

    def _end(self) -> None:
        pids = [process.pid for process in self._processes if process.pid is not None] + self._gone
        ours = children() - self._others if self.is_local else set()
        if ray.is_initialized():
            for process in self._processes:
                process.kill()
            if self._group is not None:
                remove_placement_group(self._group)
            ray.shutdown()
        end(ours)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        remove_of(pids)

    async def _in_thread(self, function: Any) -> None:
        """Also when this task is cancelled: what is begun here must be known to have ended."""
        await to_its_end(asyncio.get_running_loop().run_in_executor(self._thread, function))


def _stay_on_loopback(local: bool) -> None:
    """Have Ray listen on 127.0.0.1 alone, which it does for a cluster of one on macOS."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if local else "1"
    ray_constants.ENABLE_RAY_CLUSTER = not local


def _take_back_signals() -> None:
    """Put Python's handlers back: Ray's own takes SIGTERM for a crash and aborts."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def _log_message(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    logger.info("Ray says: %s", " ".join(data["lines"]))


# Ray would print at length on the terminal that a process died; we say so, once and with its log.
ray_worker.print_to_stdstream = _log_message


def _why(death: RayActorError) -> str:
    """What Ray knows of a death, in one sentence."""
    _, _, detail = str(death).replace("\n", " ").partition("Worker exit detail: ")
    sentence = detail.partition(". ")[0]
    if not sentence or "connection error" in sentence:
        return "its process ended without a word: killed, out of memory, or crashed"
    return sentence


def _amounts(resources: Mapping[str, float]) -> str:
    gpus = f"{resources.get('GPU', 0.0):g} GPUs"
    return f"{gpus} and {resources.get('CPU', 0.0):g} CPU cores"
