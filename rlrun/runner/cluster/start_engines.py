"""A job's engines, of every kind: started, watched, and started again."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlrun.runner.cluster.actors import EngineActor, SglangActor
from rlrun.runner.cluster.placement import Placement
from rlrun.runner.cluster.ray import Cluster, Process, Request
from rlrun.runner.cluster.threads import thread_variables
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.engines.sleeping.setup import SleepingSetup
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.plan import EnginePlan, Plan
from rlrun.runner.run_folder import RunFolder
from rlrun.specs.job import Spec

Setup = EngineSetup | SglangSetup | SleepingSetup

_ANSWER_SECONDS = 30.0
"""Beyond an engine's own deadline, for it to say what it waited for."""


def engine_requests(spec: Spec, plan: Plan, placement: Placement, folder: RunFolder) -> list[Request]:
    """The processes of the plan's engines."""
    kind = SglangActor if spec.engine.type == "sglang" else EngineActor
    return [
        Request(
            f"engine {engine.index}",
            kind,
            seat,
            thread_variables(engine.threads),
            folder.logs / f"engine-{engine.index}.log",
        )
        for engine, seat in zip(plan.engines, placement.engines, strict=True)
    ]


class EngineHandle:
    """An engine of the plan: the process that holds it now, and how another is started in its place."""

    def __init__(self, cluster: Cluster, process: Process, setup: Setup, spec: Spec) -> None:
        self._cluster = cluster
        self._process = process
        self._setup = setup
        self._spec = spec

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
        deadline = self._spec.engine.start_timeout + _ANSWER_SECONDS
        url = await self._process.call("start", self._setup, deadline=deadline)
        await self._process.identify(_ANSWER_SECONDS)
        key = self._setup.api_key if isinstance(self._setup, SglangSetup) else None
        return EngineClient(
            url,
            self._spec.rollout.request_timeout + _ANSWER_SECONDS,
            api_key=key,
            experts=_tells_experts(self._spec),
        )

    async def watch(self) -> None:
        """Return never; JobError as soon as it is gone, not well, or says nothing."""
        await self._process.watch(self._spec.fault_tolerance.engine_timeout)

    async def restart(self) -> EngineClient:
        """Kill what is left of it, and start it again in a process of its own."""
        [self._process] = self._cluster.replace([self._process])
        return await self.start()


def engine_handles(
    spec: Spec, plan: Plan, model: ModelFiles, cluster: Cluster, engines: Sequence[Process]
) -> list[EngineHandle]:
    """Handles of the plan's engines; nothing is started yet."""
    key = secrets.token_hex(16)
    make: Mapping[str, Callable[..., Setup]] = {
        "native": _native_setup,
        "sglang": partial(_sglang_setup, key=key),
        "sleeping": _sleeping_setup,
    }
    return [
        EngineHandle(cluster, process, make[spec.engine.type](spec, plan, model, engine, process), spec)
        for process, engine in zip(engines, plan.engines, strict=True)
    ]


def _native_setup(
    spec: Spec, plan: Plan, model: ModelFiles, engine: EnginePlan, process: Process
) -> EngineSetup:
    return EngineSetup(
        model_folder=str(model.folder),
        dtype=spec.engine.dtype,
        max_running=spec.engine.max_running,
        max_cache_tokens=spec.engine.max_cache_tokens,
        max_length=plan.max_sample_tokens,
        host=process.host,
        port=engine.port,
        threads=engine.threads,
        seed=spec.seed,
        device="cpu" if engine.place.gpu is None else "cuda",
    )


def _sleeping_setup(
    spec: Spec, plan: Plan, model: ModelFiles, engine: EnginePlan, process: Process
) -> SleepingSetup:
    """Neither plan nor model matter to it."""
    sleeping = spec.engine.sleeping
    return SleepingSetup(
        max_running=spec.engine.max_running,
        token_seconds=sleeping.token_seconds,
        mean_tokens=sleeping.mean_tokens,
        spread=sleeping.spread,
        host=process.host,
        port=engine.port,
    )


def _sglang_setup(
    spec: Spec, plan: Plan, model: ModelFiles, engine: EnginePlan, process: Process, *, key: str
) -> SglangSetup:
    on_cpu = engine.place.gpu is None
    return SglangSetup(
        python=spec.engine.python or sys.executable,
        model_folder=spec.engine.model or str(model.folder),
        dtype=spec.engine.dtype,
        max_running=spec.engine.max_running,
        # On a GPU the server knows better: it takes what the weights leave.
        max_cache_tokens=spec.engine.max_cache_tokens or (plan.cache_tokens if on_cpu else None),
        max_length=plan.max_sample_tokens,
        log=process.log,
        secrets=process.log.with_suffix(".keys.yaml"),
        api_key=key,
        host=process.host,
        port=engine.port,
        tensor=spec.engine.tensor,
        seed=spec.seed,
        device="cpu" if on_cpu else "cuda",
        arguments=_arguments(spec),
        environment=spec.engine.environment,
        start_timeout=spec.engine.start_timeout,
    )


def _arguments(spec: Spec) -> dict[str, Any]:
    """The server's further arguments."""
    return spec.engine.sglang | ({"enable_return_routed_experts": True} if _tells_experts(spec) else {})


def _tells_experts(spec: Spec) -> bool:
    return spec.trainer.moe.routing_replay == "engine"
