"""From a spec to running parts: inputs, rewards, trainer ranks and engines, all started side by side."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlrun.plugins.registry import build
from rlrun.plugins.validation import needs_of
from rlrun.runner.background import in_background
from rlrun.runner.carriers import TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.checkpoint import Checkpoints
from rlrun.runner.cluster.actors import EngineActor, TrainerActor
from rlrun.runner.cluster.failures import gather_or_first_cause
from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray import Cluster, Process, Request
from rlrun.runner.demonstrations import DemonstrationSource
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.pool import EnginePool
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.errors import JobError
from rlrun.runner.evaluate import Evaluator
from rlrun.runner.inputs import Inputs, read_inputs
from rlrun.runner.interfaces import Policy
from rlrun.runner.journal import Journal
from rlrun.runner.loop import BatchSource, Job
from rlrun.runner.model_files import ModelFiles
from rlrun.runner.packing import Cost, plan_steps
from rlrun.runner.plan import EnginePlan, Plan, RankPlan, make_plan
from rlrun.runner.rollout import RolloutSource
from rlrun.runner.run_folder import RunFolder
from rlrun.runner.scoring import Scorer, unique_names
from rlrun.runner.trainer_group import TrainerGroup
from rlrun.specs.job import Spec

_START_SECONDS = 1800.0
"""Deadline for a trainer rank to import, meet the others and load its model."""
_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs."""

    plan: Plan
    steps: int
    inputs: Inputs
    cluster: Cluster
    trainer: TrainerGroup
    pool: EnginePool | None
    scorer: Scorer


async def start_parts(spec: Spec, model: ModelFiles, folder: RunFolder, stack: AsyncExitStack) -> Parts:
    """Start everything; `stack` ends it. JobError or ValueError with the first cause of what went wrong."""
    reading = asyncio.create_task(_read(spec, model))
    plan = make_plan(spec)
    if plan.steps is None:
        plan = make_plan(spec, rows=len((await reading).stream))
    assert plan.steps is not None
    scorer = Scorer(spec.rewards, spec.scoring, folder.logs)
    stack.push_async_callback(scorer.close)
    cluster = Cluster(spec.cluster, place(plan))
    stack.push_async_callback(cluster.close)
    starting = asyncio.create_task(_start_processes(spec, plan, model, folder, cluster))
    await gather_or_first_cause([starting, reading, asyncio.create_task(scorer.start())])
    trainers, urls = starting.result()
    pool = EnginePool([EngineClient(url, spec.rollout.request_timeout) for url in urls]) if urls else None
    if pool is not None:
        stack.push_async_callback(pool.close)
    trainer = TrainerGroup(trainers, [rank.data_rank for rank in plan.ranks])
    return Parts(plan, plan.steps, reading.result(), cluster, trainer, pool, scorer)


def make_job(spec: Spec, model: ModelFiles, parts: Parts, journal: Journal, checkpoints: Checkpoints) -> Job:
    """The loop's view of the parts."""
    policy = evaluation = None
    if parts.pool is not None:
        policy = Policy(parts.pool, parts.inputs.tokenizer, parts.scorer, spec.seed, spec.deterministic)
        if parts.inputs.eval_sets:
            evaluation = Evaluator(parts.inputs.eval_sets, policy, spec.rollout.request_timeout)
    return Job(
        steps=parts.steps,
        source=_source(spec, parts, policy),
        algorithm=build("algorithms", spec.algorithm.type, spec.algorithm.params),
        pack=_packer(spec, parts.plan, model),
        trainer=parts.trainer,
        journal=journal,
        checkpoints=checkpoints,
        engines=parts.pool,
        evaluation=evaluation,
        recompute_old=spec.trainer.old_log_probs == "trainer",
        eval_before_training=spec.eval.before_training,
        eval_interval=spec.eval.interval,
        checkpoint_interval=spec.checkpoint.interval,
        peak_memory=parts.cluster.peak_memory,
    )


def _source(spec: Spec, parts: Parts, policy: Policy | None) -> BatchSource:
    if policy is None:
        return DemonstrationSource(parts.inputs.groups(parts.plan.batch.prompts))
    names = unique_names(spec.filters)
    filters = [build("filters", one.type, one.params) for one in spec.filters]
    prompts = parts.inputs.prompts(spec.rollout.oversample or spec.rollout.batch_size)
    return RolloutSource(spec.rollout, policy, prompts, list(zip(names, filters, strict=True)))


def _packer(
    spec: Spec, plan: Plan, model: ModelFiles
) -> Callable[[Sequence[TrainSequence]], list[TrainStep]]:
    config = model.config()
    return partial(
        plan_steps,
        optimizer_steps=plan.batch.optimizer_steps,
        reduction=spec.trainer.reduction,
        max_tokens=plan.micro_batch_tokens,
        max_length=config["max_position_embeddings"],
        max_response_tokens=spec.rollout.max_response_tokens,
        data_degree=spec.trainer.parallel.data_degree,
        cost=Cost.of_model(config),
    )


async def _read(spec: Spec, model: ModelFiles) -> Inputs:
    rollout = needs_of(spec).rollout
    return await in_background(read_inputs, spec, model.folder, rollout=rollout)


async def _start_processes(
    spec: Spec, plan: Plan, model: ModelFiles, folder: RunFolder, cluster: Cluster
) -> tuple[list[Process], list[str]]:
    """Trainer ranks and the URLs of engines; every process begins to start before any is waited for."""
    await cluster.start()
    placement = cluster.placement
    trainers = cluster.launch(
        [
            Request(
                f"trainer {rank.rank}",
                TrainerActor,
                seat,
                {"RANK": str(rank.rank), "WORLD_SIZE": str(len(plan.ranks)), **_threads(rank.threads)},
                folder.logs / f"trainer-{rank.rank}.log",
            )
            for rank, seat in zip(plan.ranks, placement.ranks, strict=True)
        ]
    )
    engines = cluster.launch(
        [
            Request(
                f"engine {engine.index}",
                EngineActor,
                seat,
                _threads(engine.threads),
                folder.logs / f"engine-{engine.index}.log",
            )
            for engine, seat in zip(plan.engines, placement.engines, strict=True)
        ]
    )
    await _check_hosts(cluster, trainers, engines, [model.folder, folder.path])
    starting = asyncio.create_task(_start_trainers(spec, plan, model, trainers))
    serving = asyncio.create_task(_start_engines(spec, plan, model, engines, cluster))
    await gather_or_first_cause([starting, serving])
    await gather_or_first_cause([process.identify(_BOOT_SECONDS) for process in (*trainers, *engines)])
    return trainers, serving.result()


async def _start_trainers(spec: Spec, plan: Plan, model: ModelFiles, trainers: Sequence[Process]) -> None:
    host, port = await trainers[0].call("free_address", deadline=_BOOT_SECONDS)
    calls = [
        process.call("start", _trainer_setup(spec, plan, model, rank, (host, port)), deadline=_START_SECONDS)
        for process, rank in zip(trainers, plan.ranks, strict=True)
    ]
    await gather_or_first_cause(calls)


def _trainer_setup(
    spec: Spec, plan: Plan, model: ModelFiles, rank: RankPlan, master: tuple[str, int]
) -> TrainerSetup:
    assert plan.optimizer_steps is not None
    return TrainerSetup(
        spec_json=spec.model_dump_json(),
        model_folder=str(model.folder),
        rank=rank.rank,
        # a process sees only its own GPU, as device 0
        local_rank=rank.local_rank if rank.place.gpu is None else 0,
        world_size=len(plan.ranks),
        master_addr=master[0],
        master_port=master[1],
        threads=rank.threads,
        optimizer_steps=plan.optimizer_steps,
    )


async def _start_engines(
    spec: Spec, plan: Plan, model: ModelFiles, engines: Sequence[Process], cluster: Cluster
) -> list[str]:
    longest = max([plan.max_sample_tokens, *_evaluation_lengths(spec)])

    async def start(process: Process, engine: EnginePlan) -> str:
        host = "127.0.0.1" if cluster.is_local else (await _host(process))
        setup = EngineSetup(
            model_folder=str(model.folder),
            dtype=spec.engine.dtype,
            max_running=spec.engine.max_running,
            max_cache_tokens=spec.engine.max_cache_tokens,
            max_length=longest,
            host=host,
            port=engine.port,
            threads=engine.threads,
            seed=spec.seed,
            device="cpu" if engine.place.gpu is None else "cuda",
        )
        url: str = await process.call("start", setup, deadline=spec.engine.start_timeout)
        return url

    return await gather_or_first_cause(
        [start(process, engine) for process, engine in zip(engines, plan.engines, strict=True)]
    )


def _evaluation_lengths(spec: Spec) -> list[int]:
    """Prompt and response at their longest in each held-out dataset."""
    responses = [one.max_response_tokens or spec.eval.max_response_tokens or 0 for one in spec.eval.datasets]
    return [spec.rollout.max_prompt_tokens + response for response in responses]


async def _check_hosts(
    cluster: Cluster, trainers: Sequence[Process], engines: Sequence[Process], paths: Sequence[Path]
) -> None:
    """On a cluster that we joined: every host sees the files, and engines share rank 0's memory."""
    if cluster.is_local:
        return
    processes = [*trainers, *engines]
    names = [str(path) for path in paths]
    missing = await gather_or_first_cause(
        [process.call("missing", names, deadline=_BOOT_SECONDS) for process in processes]
    )
    hosts = await gather_or_first_cause([_host(process) for process in processes])
    for process, host, unseen in zip(processes, hosts, missing, strict=True):
        if unseen:
            raise JobError(
                f"{process.name} on {host} does not see {unseen[0]}; model.path and runs_dir must lie on a "
                "file system that all nodes of the job share"
            )
        if process in engines and host != hosts[0]:
            raise JobError(
                f"{process.name} was placed on {host} and trainer 0 on {hosts[0]}; weights go from one "
                "to the other through shared memory, so they must share a host: use cluster.nodes = 1"
            )


async def _host(process: Process) -> str:
    host, _ = await process.call("free_address", deadline=_BOOT_SECONDS)
    return str(host)


def _threads(count: int) -> dict[str, str]:
    """What OpenMP reads when it is loaded.

    By default its threads spin for milliseconds while they wait; where anything else wants their cores, a
    step then takes ten times as long (measured on two busy cores). Unless told otherwise, they spin for
    microseconds.
    """
    spin = {} if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() else {"GOMP_SPINCOUNT": "1000"}
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), **spin}
