"""Starts a job's engines, native or SGLang, and hands back a client of each."""

import secrets
import sys
from collections.abc import Sequence

from rlrun.runner.cluster.actors import EngineActor, SglangActor
from rlrun.runner.cluster.failures import gather_or_first_cause
from rlrun.runner.cluster.placement import Placement
from rlrun.runner.cluster.ray import Process, Request
from rlrun.runner.cluster.threads import thread_variables
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.plan import EnginePlan, Plan
from rlrun.runner.run_folder import RunFolder
from rlrun.specs.job import Spec

_ANSWER_SECONDS = 30.0
"""Beyond an engine's own deadline, for it to say what it waited for."""


def engine_requests(spec: Spec, plan: Plan, placement: Placement, folder: RunFolder) -> list[Request]:
    """The processes of the plan's engines."""
    kind = EngineActor if spec.engine.type == "native" else SglangActor
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


async def start_engines(
    spec: Spec, plan: Plan, model: ModelFiles, engines: Sequence[Process]
) -> list[EngineClient]:
    """Load the model in every engine; clients of them all. ProcessFailure with the first cause."""
    key = secrets.token_hex(16) if spec.engine.type == "sglang" else None
    setups = [
        _sglang_setup(spec, plan, model, engine, process, key=key)
        if key
        else _native_setup(spec, plan, model, engine, process)
        for process, engine in zip(engines, plan.engines, strict=True)
    ]
    deadline = spec.engine.start_timeout + _ANSWER_SECONDS
    calls = [
        process.call("start", setup, deadline=deadline)
        for process, setup in zip(engines, setups, strict=True)
    ]
    urls: list[str] = await gather_or_first_cause(calls)
    return [EngineClient(url, spec.rollout.request_timeout, api_key=key) for url in urls]


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


def _sglang_setup(
    spec: Spec, plan: Plan, model: ModelFiles, engine: EnginePlan, process: Process, *, key: str
) -> SglangSetup:
    on_cpu = engine.place.gpu is None
    return SglangSetup(
        python=spec.engine.python or sys.executable,
        model_folder=str(model.folder),
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
        arguments=spec.engine.sglang,
        environment=spec.engine.environment,
        start_timeout=spec.engine.start_timeout,
    )
