"""Starts, watches and restarts a job's engines, of every kind."""

from collections.abc import Sequence
from dataclasses import replace

from yarl import URL

from rlrun.plugins.validation import needs_of
from rlrun.runner.cluster.actors import EngineActor, SglangActor
from rlrun.runner.cluster.engine_setups import ServedModelSetup, Setup, engine_setup, reports_experts
from rlrun.runner.cluster.placement import BundleSlot, NodeSlots
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.runner.engines.client.rooms import REGULAR, Serving
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.threads import thread_variables
from rlrun.runner.planning.plan import EnginePlan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.derived.speculation import updated_models
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""
_ANSWER_SECONDS = 30.0
"""Time beyond an engine's own deadline for it to report what it waited for."""


def engine_requests(
    section: EngineSpec, plans: Sequence[EnginePlan], slots: Sequence[NodeSlots], folder: RunFolder
) -> list[Request]:
    """Returns the processes to start for planned engines: one for each node of each engine."""
    kind = SglangActor if section.type == "sglang" else EngineActor
    return [
        Request(
            f"{engine.name} {engine.index}" + (f" (node {number} of it)" if number else ""),
            kind,
            slot,
            thread_variables(engine.threads),
            folder.logs / f"{engine.name}-{engine.index}{f'-node-{number}' if number else ''}.log",
        )
        for engine, parts in zip(plans, slots, strict=True)
        for number, slot in enumerate(parts)
    ]


class EngineHandle:
    """An engine of the plan, and the processes that run it now.

    It has one process, except for a server over several nodes: that has one on each, and the first answers.
    An elastic engine has none while the cluster has no room for it.
    """

    def __init__(
        self,
        cluster: Cluster,
        requests: Sequence[Request],
        plan: EnginePlan,
        spec: Spec,
        what: ServedModelSetup,
    ) -> None:
        self._cluster = cluster
        self.requests = tuple(requests)
        """The processes to start for it."""
        self.processes: list[Process] = []
        """The processes that run it now."""
        self._plan = plan
        self._port = plan.port
        self._spec = spec
        self._served = what

    @property
    def name(self) -> str:
        """Its name in messages: `engine 0`."""
        return self.requests[0].name

    @property
    def is_placed(self) -> bool:
        """Whether its processes can be launched. An elastic engine may have no node yet."""
        return self._cluster.is_placed(self._slots)

    async def has_room(self) -> bool:
        """Returns whether the cluster has room for it: an elastic engine may have none."""
        return await self._cluster.has_room(self._slots)

    async def start(self) -> EngineClient:
        """Loads the model and returns a client. Raises ProcessFailure if the engine does not come up."""
        deadline = self._served.section.start_timeout + _ANSWER_SECONDS
        setups = await self._with_bootstrap_port(await self._meeting(self._setups()))
        starting = [
            process.call("start", setup, deadline=deadline)
            for process, setup in zip(self.processes, setups, strict=True)
        ]
        url, *_ = await gather_or_first_cause(starting)
        await gather_or_first_cause([process.identify(_ANSWER_SECONDS) for process in self.processes])
        if self._served.keeps_port:
            self._port = URL(url).port
        return EngineClient(
            url,
            answer_timeout(self._spec, needs_of(self._spec)) + _ANSWER_SECONDS,
            api_key=setups[0].api_key,
            name=self.name,
            limits=ModelLimits.of(
                self._served.model.config(), experts=reports_experts(self._spec, self._served)
            ),
            models=updated_models(self._served.section),
            own=self._served.section.type != "sglang",
            serving=_serving(setups[0], url),
        )

    async def watch(self) -> None:
        """Never returns; raises JobError as soon as a process is gone, unhealthy, or does not answer."""
        seconds = self._spec.fault_tolerance.engine_timeout
        await gather_or_first_cause([process.watch(seconds) for process in self.processes])

    async def restart(self) -> EngineClient:
        """Kills the engine's processes on every node, if it has any, and starts it again in new ones."""
        ended, self.processes = self.processes, []  # also where no new ones can be started
        begin = self._cluster.replace(ended) if ended else self._cluster.launch(self.requests)
        self.processes = await begin
        return await self.start()

    def leave(self) -> None:
        """Ends its processes: their node is lost."""
        self._cluster.end(self.processes)
        self.processes = []

    @property
    def _slots(self) -> list[BundleSlot]:
        return [request.slot for request in self.requests]

    def _setups(self) -> list[Setup]:
        """Returns the settings of each process, which say on which node it is."""
        plan = replace(self._plan, port=self._port)
        return [
            engine_setup(self._spec, self._served, plan, process, number)
            for number, process in enumerate(self.processes)
        ]

    async def _with_bootstrap_port(self, setups: list[Setup]) -> list[Setup]:
        """Returns the settings of each process; those of a prefill server with a free port to hand caches
        over.
        """
        if not isinstance(setups[0], SglangSetup) or setups[0].role != "prefill":
            return setups
        port = await self.processes[0].call("free_port", deadline=_BOOT_SECONDS)
        return [replace(setup, bootstrap_port=port) for setup in setups if isinstance(setup, SglangSetup)]

    async def _meeting(self, setups: list[Setup]) -> list[Setup]:
        """Returns the settings of each process; several meet at a free port of the first one's node."""
        first = self.processes[0]
        if len(setups) == 1:
            return setups
        port = await first.call("free_port", deadline=_BOOT_SECONDS)
        return [
            replace(setup, meeting=f"{first.host}:{port}")
            for setup in setups
            if isinstance(setup, SglangSetup)
        ]


def _serving(setup: Setup, url: str) -> Serving:
    """Returns what a server that was started with these settings does for a sample."""
    if not isinstance(setup, SglangSetup):
        return REGULAR
    return Serving(setup.role, URL(url).host or "", setup.bootstrap_port or 0)


async def launch_engines(
    spec: Spec,
    what: ServedModelSetup,
    plans: Sequence[EnginePlan],
    slots: Sequence[NodeSlots],
    cluster: Cluster,
    *,
    folder: RunFolder,
) -> list[EngineHandle]:
    """Begins to start planned engines and returns their handles; their servers are not started yet. Elastic
    engines that the cluster has no room for have no processes.
    """
    handles = [
        EngineHandle(cluster, engine_requests(what.section, [engine], [parts], folder), engine, spec, what)
        for engine, parts in zip(plans, slots, strict=True)
    ]
    placed = [handle for handle in handles if handle.is_placed]
    processes = iter(await cluster.launch([request for handle in placed for request in handle.requests]))
    for handle in placed:
        handle.processes = [next(processes) for _ in handle.requests]
    return handles
