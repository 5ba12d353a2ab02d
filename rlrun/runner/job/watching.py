"""Watches a job's engines and Ray, and starts engines again that die or hang."""

import asyncio
from collections.abc import Callable

from rlrun.plugins.rollouts.agent.command_agent import running_programs
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.start import POLICY, Handle
from rlrun.runner.cluster.start_engines import EngineHandle
from rlrun.runner.contracts.errors import MachinesFailed
from rlrun.runner.engines.pool.elastic import ElasticEngines
from rlrun.runner.engines.pool.supervisor import RestartBudget, Supervisor
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause
from rlrun.runner.host.memory import GroupMemory, MemoryWatch, job_memory
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.stopping import StopRequest, announcement
from rlrun.specs.sections.job import Spec


async def diagnose_engines(running: RunningJob) -> ProcessFailure | None:
    """Returns the failure of an engine that died or hangs; None if all are well."""
    own_engines = [engine for engine in _every_engine(running) if isinstance(engine, EngineHandle)]
    return await running.cluster.diagnose([process for engine in own_engines for process in engine.processes])


def _every_engine(running: RunningJob) -> list[Handle]:
    return [handle for group in running.engines.values() for handle in group.handles]


async def watch(
    spec: Spec, running: RunningJob, stop: StopRequest, say: Callable[[str], None], memory: MemoryWatch
) -> None:
    """Never returns; raises the first failure that a restart of an engine cannot repair."""
    watches = [
        watch_engines(spec, running, say),
        watch_ray(running.cluster, stop, say, spec.checkpoint.stop_timeout),
        memory.run(),
    ]
    if running.pool is not None and spec.engine.type == "sglang":
        watches.append(running.pool.watch_queues())
    await gather_or_first_cause(watches)


def memory_of(running: RunningJob) -> list[GroupMemory]:
    """Returns the resident memory of the job's processes on this host by what they do."""
    names = dict.fromkeys(tuple(running_programs), "programs of the agent")
    names |= dict.fromkeys(running.scorer.pids, "rewards")
    return job_memory(names | running.cluster.process_groups(), "Ray")


async def watch_ray(cluster: Cluster, stop: StopRequest, say: Callable[[str], None], seconds: float) -> None:
    """Never returns. When Ray is lost, asks the run to stop, with `seconds` to save.

    Raises MachinesFailed after that.
    """
    stop.cause = await cluster.lost()
    say(f"{stop.cause}; {announcement(stop.moment, stop.step, seconds)}")
    stop.ask()
    if stop.will_save:
        await asyncio.sleep(seconds)
    raise MachinesFailed(stop.cause)


async def watch_engines(spec: Spec, running: RunningJob, say: Callable[[str], None]) -> None:
    """Never returns; raises the failure of the first engine that cannot be started again."""
    engines = _every_engine(running)
    if not engines:
        await asyncio.Event().wait()
    budget = RestartBudget(spec.fault_tolerance.engine_restarts)
    gateway_watch = []
    if running.gateway is not None and running.pool is not None:
        gateway_watch = [running.gateway.supervise(running.pool.slots, budget, say)]
    if not spec.fault_tolerance.engine_restarts:
        await gather_or_first_cause([*gateway_watch, *(engine.watch() for engine in engines)])
    supervisors = [
        Supervisor(
            pool,
            running.engines[name].handles,
            budget,
            say,
            _elastic(spec, running, say) if name == POLICY else None,
        )
        for name, pool in running.pools.items()
    ]
    await gather_or_first_cause([*gateway_watch, *(supervisor.run() for supervisor in supervisors)])


def _elastic(spec: Spec, running: RunningJob, say: Callable[[str], None]) -> ElasticEngines | None:
    """Returns the policy's engines if they are elastic."""
    if running.plan.min_engines is None:
        return None
    engines = [engine for engine in running.engines[POLICY].handles if isinstance(engine, EngineHandle)]
    return ElasticEngines(engines, running.plan.min_engines, spec.fault_tolerance.node_timeout, say)
