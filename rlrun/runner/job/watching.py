"""Whether a job's engines are well, and what starts them again when they are not."""

import asyncio
from collections.abc import Callable

from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.start import Handle
from rlrun.runner.cluster.start_engines import EngineHandle
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.engines.pool.supervisor import RestartBudget, Supervisor
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.stopping import StopRequest, announcement
from rlrun.specs.sections.job import Spec


async def diagnose_engines(parts: RunningJob) -> ProcessFailure | None:
    """An engine that is gone or not well, if any."""
    ours = [engine for engine in _every_engine(parts) if isinstance(engine, EngineHandle)]
    return await parts.cluster.diagnose([process for engine in ours for process in engine.processes])


def _every_engine(parts: RunningJob) -> list[Handle]:
    groups = [parts.started.engines, *parts.started.others.values()]
    return [handle for group in groups for handle in group.handles]


async def watch(spec: Spec, parts: RunningJob, stop: StopRequest, say: Callable[[str], None]) -> None:
    """Return never; the failure of what can neither be started again nor done without."""
    watching_ray = watch_ray(parts.cluster, stop, say, spec.checkpoint.stop_timeout)
    await gather_or_first_cause([watch_engines(spec, parts, say), watching_ray])


async def watch_ray(cluster: Cluster, stop: StopRequest, say: Callable[[str], None], seconds: float) -> None:
    """Return never. When Ray is lost the run is asked to stop, and has `seconds` to save; JobError then."""
    stop.cause = await cluster.lost()
    say(f"{stop.cause}; {announcement(stop.moment, stop.step, seconds)}")
    stop.ask()
    if stop.will_save:
        await asyncio.sleep(seconds)
    raise JobError(stop.cause)


async def watch_engines(spec: Spec, parts: RunningJob, say: Callable[[str], None]) -> None:
    """Return never; the failure of the first engine that is not well and cannot be started again."""
    engines = _every_engine(parts)
    if not engines:
        await asyncio.Event().wait()
    budget = RestartBudget(spec.fault_tolerance.engine_restarts)
    ways = []
    if parts.gateway is not None and parts.pool is not None:
        ways = [parts.gateway.supervise(parts.pool.slots, budget, say)]
    if not spec.fault_tolerance.engine_restarts:
        await gather_or_first_cause([*ways, *(engine.watch() for engine in engines)])
    pools = [(parts.pool, parts.started.engines.handles)] if parts.pool is not None else []
    pools += [(pool, parts.started.others[name].handles) for name, pool in parts.others.items()]
    supervisors = [Supervisor(pool, handles, budget, say) for pool, handles in pools]
    await gather_or_first_cause([*ways, *(one.run() for one in supervisors)])
