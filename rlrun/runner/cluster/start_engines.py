"""A job's engines, of every kind: started, watched, and started again."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from yarl import URL

from rlrun.runner.cluster.engine_actors import EngineActor, SglangActor
from rlrun.runner.cluster.engine_setups import Served, Setup, engine_setup, tells_experts
from rlrun.runner.cluster.placement import Seats
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.failures import gather_or_first_cause
from rlrun.runner.host.threads import thread_variables
from rlrun.runner.planning.plan import EnginePlan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.derived.request_deadlines import answer_timeout
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""
_ANSWER_SECONDS = 30.0
"""Beyond an engine's own deadline, for it to say what it waited for."""


def engine_requests(
    section: EngineSpec, plans: Sequence[EnginePlan], seats: Sequence[Seats], folder: RunFolder
) -> list[Request]:
    """The processes of planned engines: of each one for every node that it lies on."""
    kind = SglangActor if section.type == "sglang" else EngineActor
    return [
        Request(
            f"{engine.name} {engine.index}" + (f" (node {number} of it)" if number else ""),
            kind,
            seat,
            thread_variables(engine.threads),
            folder.logs / f"{engine.name}-{engine.index}{f'-node-{number}' if number else ''}.log",
        )
        for engine, parts in zip(plans, seats, strict=True)
        for number, seat in enumerate(parts)
    ]


class EngineHandle:
    """An engine of the plan: the processes that hold it now, and how others are started in their place.

    They are one, but for a server over several nodes: there is one on each, and the first answers.
    """

    def __init__(
        self,
        cluster: Cluster,
        processes: Sequence[Process],
        setups: Sequence[Setup],
        spec: Spec,
        what: Served,
    ) -> None:
        self._cluster = cluster
        self.processes = list(processes)
        """Those that hold it now."""
        self._setups = list(setups)
        self._spec = spec
        self._served = what

    @property
    def name(self) -> str:
        """As messages call it: `engine 0`."""
        return self.processes[0].name

    async def start(self) -> EngineClient:
        """Load the model; a client. ProcessFailure where it does not come up."""
        deadline = self._served.section.start_timeout + _ANSWER_SECONDS
        setups = await self._meeting()
        starting = [
            process.call("start", setup, deadline=deadline)
            for process, setup in zip(self.processes, setups, strict=True)
        ]
        url, *_ = await gather_or_first_cause(starting)
        await gather_or_first_cause([process.identify(_ANSWER_SECONDS) for process in self.processes])
        first = self._setups[0]
        if not self._served.is_policy:
            self._setups[0] = replace(first, port=URL(url).port)
        return EngineClient(
            url,
            answer_timeout(self._spec) + _ANSWER_SECONDS,
            api_key=first.api_key,
            name=self.name,
            limits=ModelLimits.of(
                self._served.model.config(), experts=tells_experts(self._spec, self._served)
            ),
        )

    async def watch(self) -> None:
        """Return never; JobError as soon as a part of it is gone, not well, or says nothing."""
        seconds = self._spec.fault_tolerance.engine_timeout
        await gather_or_first_cause([process.watch(seconds) for process in self.processes])

    async def restart(self) -> EngineClient:
        """Kill what is left of it, on every node, and start it again in processes of its own."""
        self.processes = self._cluster.replace(self.processes)
        return await self.start()

    async def _meeting(self) -> list[Setup]:
        """What each part needs to start; several meet at a port of the first one's node that is free now."""
        first = self.processes[0]
        if len(self.processes) == 1:
            return self._setups
        port = await first.call("free_port", deadline=_BOOT_SECONDS)
        setups = [setup for setup in self._setups if isinstance(setup, SglangSetup)]
        return [replace(setup, meeting=f"{first.host}:{port}") for setup in setups]


def engine_handles(
    spec: Spec, what: Served, plans: Sequence[EnginePlan], cluster: Cluster, engines: Sequence[Process]
) -> list[EngineHandle]:
    """Handles of planned engines; nothing is started yet."""
    left = iter(engines)
    handles = []
    for engine in plans:
        own = list(islice(left, len(engine.nodes)))
        setups = [engine_setup(spec, what, engine, process, number) for number, process in enumerate(own)]
        handles.append(EngineHandle(cluster, own, setups, spec, what))
    return handles
