"""A job's engines, of every kind: started, watched, and started again."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yarl import URL

from rlrun.runner.cluster.actors import EngineActor, SglangActor
from rlrun.runner.cluster.placement import Seat
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
    section: EngineSpec, plans: Sequence[EnginePlan], seats: Sequence[Seat], folder: RunFolder
) -> list[Request]:
    """The processes of planned engines."""
    kind = SglangActor if section.type == "sglang" else EngineActor
    return [
        Request(
            f"{engine.name} {engine.index}",
            kind,
            seat,
            thread_variables(engine.threads),
            folder.logs / f"{engine.name}-{engine.index}.log",
        )
        for engine, seat in zip(plans, seats, strict=True)
    ]


class EngineHandle:
    """An engine of the plan: the process that holds it now, and how another is started in its place."""

    def __init__(self, cluster: Cluster, process: Process, setup: Setup, spec: Spec, what: Served) -> None:
        self._cluster = cluster
        self._process = process
        self._setup = setup
        self._spec = spec
        self._served = what

    @property
    def name(self) -> str:
        """As messages call it: `engine 0`."""
        return self._process.name

    @property
    def process(self) -> Process:
        """The one that holds it now."""
        return self._process

    async def start(self) -> EngineClient:
        """Load the model; a client. ProcessFailure where it does not come up."""
        deadline = self._served.section.start_timeout + _ANSWER_SECONDS
        url = await self._process.call("start", self._setup, deadline=deadline)
        await self._process.identify(_ANSWER_SECONDS)
        if not self._served.is_policy:
            self._setup = replace(self._setup, port=URL(url).port)
        key = self._setup.api_key if isinstance(self._setup, SglangSetup) else None
        return EngineClient(
            url,
            self._spec.rollout.request_timeout + _ANSWER_SECONDS,
            api_key=key,
            experts=_tells_experts(self._spec, self._served),
        )

    async def watch(self) -> None:
        """Return never; JobError as soon as it is gone, not well, or says nothing."""
        await self._process.watch(self._spec.fault_tolerance.engine_timeout)

    async def restart(self) -> EngineClient:
        """Kill what is left of it, and start it again in a process of its own."""
        [self._process] = self._cluster.replace([self._process])
        return await self.start()


def engine_handles(
    spec: Spec, what: Served, plans: Sequence[EnginePlan], cluster: Cluster, engines: Sequence[Process]
) -> list[EngineHandle]:
    """Handles of planned engines; nothing is started yet."""
    make: Mapping[str, Callable[[Spec, Served, EnginePlan, Process], Setup]] = {
        "native": _native_setup,
        "sglang": _sglang_setup,
        "sleeping": _sleeping_setup,
    }
    setup = make[what.section.type]
    return [
        EngineHandle(cluster, process, setup(spec, what, engine, process), spec, what)
        for process, engine in zip(engines, plans, strict=True)
    ]


def _native_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process) -> EngineSetup:
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


def _sleeping_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process) -> SleepingSetup:
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


def _sglang_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process) -> SglangSetup:
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
