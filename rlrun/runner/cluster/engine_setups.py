"""What each kind of engine needs to start, from the spec, its plan and the process that it gets."""

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.runner.cluster.ray_process import Process
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.engines.sleeping.setup import SleepingSetup
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import EnginePlan, Plan
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.job import Spec

Setup = EngineSetup | SglangSetup | SleepingSetup


@dataclass(frozen=True, slots=True)
class Served:
    """What engines serve: `[engine]` or one of `[[engines]]`, its model, and what is asked of it."""

    section: EngineSpec
    model: ModelFiles
    max_length: int | None
    """Tokens of the longest sample; None: the model's own limit."""
    cache_tokens: int | None
    """KV cache of each; None: as much as there is room for."""
    key: str = field(repr=False)
    """Asked by the engines of their clients."""

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


def engine_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int) -> Setup:
    """For the process that holds a planned engine, or the part of it on its `node`-th node."""
    make: Mapping[str, Callable[[Spec, Served, EnginePlan, Process, int], Setup]] = {
        "native": _native_setup,
        "sglang": _sglang_setup,
        "sleeping": _sleeping_setup,
    }
    return make[what.section.type](spec, what, engine, process, node)


def tells_experts(spec: Spec, what: Served) -> bool:
    """Whether engines say which experts tokens were routed to."""
    return what.is_policy and spec.trainer.moe.routing_replay == "engine"


def _native_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int) -> EngineSetup:
    """On one node only."""
    return EngineSetup(
        model_folder=str(what.model.folder),
        dtype=what.section.dtype,
        head_dtype=spec.trainer.head_dtype,
        max_running=what.section.max_running,
        max_cache_tokens=what.section.max_cache_tokens,
        max_length=what.max_length,
        host=process.host,
        port=engine.port,
        threads=engine.threads,
        seed=spec.seed,
        device="cpu" if engine.location.gpu is None else "cuda",
        api_key=what.key,
        job=spec.name if what.is_policy else None,
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
        api_key=what.key,
    )


def _sglang_setup(spec: Spec, what: Served, engine: EnginePlan, process: Process, node: int) -> SglangSetup:
    on_cpu = engine.location.gpu is None
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
        environment=reveal(section.environment),
        start_timeout=section.start_timeout,
    )


def _arguments(spec: Spec, what: Served) -> dict[str, Any]:
    """The server's further arguments."""
    tells = {"enable_return_routed_experts": True} if tells_experts(spec, what) else {}
    saves = {"enable_memory_saver": True} if sleeps(spec) and what.is_policy else {}
    wide = {"enable_fp32_lm_head": True} if spec.trainer.head_dtype == "float32" else {}
    return what.section.sglang | tells | saves | wide
