"""A job's engines, of every kind: started, watched, and started again."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from yarl import URL

from rlrun.runner.cluster.actors import EngineActor, SglangActor
from rlrun.runner.cluster.failures import gather_or_first_cause
from rlrun.runner.cluster.placement import Seats
from rlrun.runner.cluster.ray import Cluster, Process, Request
from rlrun.runner.cluster.threads import thread_variables
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.engines.sleeping.setup import SleepingSetup
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.planning.plan import EnginePlan, Plan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.job import Spec
from rlrun.specs.layout import sleeps

Setup = EngineSetup | SglangSetup | SleepingSetup

_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""
_ANSWER_SECONDS = 30.0
"""Beyond an engine's own deadline, for it to say what it waited for."""


@dataclass(frozen=True, slots=True)
class Served:
    """What engines serve: `[engine]` or one of `[[engines]]`, its model, and what is asked of it."""

    section: EngineSpec
    model: ModelFiles
    max_length: int | None
    """Tokens of the longest sample; None: the model's own limit."""
    cache_tokens: int | None
    """KV cache of each; None: as much as there is room for."""
    key: str
    """API key of SGLang servers."""

    @property
    def is_policy(self) -> bool:
        """Of `[engine]`. Others come back where they were: not only this process knows their address."""
        return not isinstance(self.section, NamedEngineSpec)


def policy_served(spec: Spec, plan: Plan, model: ModelFiles) -> Served:
    """What `[engine]` serves."""
    return Served(spec.engine, model, plan.max_sample_tokens, plan.cache_tokens, secrets.token_hex(16))


def other_served(section: NamedEngineSpec, model: ModelFiles) -> Served:
    """What one of `[[engines]]` serves."""
    return Served(section, model, section.max_length, None, secrets.token_hex(16))


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
        key = first.api_key if isinstance(first, SglangSetup) else None
        return EngineClient(
            url,
            self._spec.rollout.request_timeout + _ANSWER_SECONDS,
            api_key=key,
            experts=_tells_experts(self._spec, self._served),
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
    make: Mapping[str, Callable[[Spec, Served, EnginePlan, Process, int], Setup]] = {
        "native": _native_setup,
        "sglang": _sglang_setup,
        "sleeping": _sleeping_setup,
    }
    setup = make[what.section.type]
    left = iter(engines)
    handles = []
    for engine in plans:
        own = list(islice(left, len(engine.nodes)))
        setups = [setup(spec, what, engine, process, number) for number, process in enumerate(own)]
        handles.append(EngineHandle(cluster, own, setups, spec, what))
    return handles


def _native_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int) -> EngineSetup:
    """On one node only."""
    return EngineSetup(
        model_folder=str(what.model.folder),
        dtype=what.section.dtype,
        max_running=what.section.max_running,
        max_cache_tokens=what.section.max_cache_tokens,
        max_length=what.max_length,
        host=process.host,
        port=engine.port,
        threads=engine.threads,
        seed=spec.seed,
        device="cpu" if engine.place.gpu is None else "cuda",
    )


def _sleeping_setup(
    spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int
) -> SleepingSetup:
    """Neither plan nor model matter to it."""
    sleeping = what.section.sleeping
    return SleepingSetup(
        max_running=what.section.max_running,
        token_seconds=sleeping.token_seconds,
        mean_tokens=sleeping.mean_tokens,
        spread=sleeping.spread,
        host=process.host,
        port=engine.port,
    )


def _sglang_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int) -> SglangSetup:
    on_cpu = engine.place.gpu is None
    section = what.section
    return SglangSetup(
        python=section.python or sys.executable,
        model_folder=section.model or str(what.model.folder),
        dtype=section.dtype,
        max_running=section.max_running,
        # On a GPU the server knows better: it takes what the weights leave.
        max_cache_tokens=section.max_cache_tokens or (what.cache_tokens if on_cpu else None),
        max_length=what.max_length,
        log=process.log,
        secrets=process.log.with_suffix(".keys.yaml"),
        api_key=what.key,
        host=process.host,
        port=engine.port,
        tensor=section.tensor,
        gpus=process.gpus,
        nodes=len(engine.nodes),
        node=node,
        seed=spec.seed,
        device="cpu" if on_cpu else "cuda",
        arguments=_arguments(spec, what),
        environment=section.environment,
        start_timeout=section.start_timeout,
    )


def _arguments(spec: Spec, what: Served) -> dict[str, Any]:
    """The server's further arguments."""
    tells = {"enable_return_routed_experts": True} if _tells_experts(spec, what) else {}
    saves = {"enable_memory_saver": True} if sleeps(spec) and what.is_policy else {}
    return what.section.sglang | tells | saves


def _tells_experts(spec: Spec, what: Served) -> bool:
    return what.is_policy and spec.trainer.moe.routing_replay == "engine"
