"""A whole job in this process: one trainer rank and one engine, no Ray, and rewards scored in place."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlrun.plugins.registry import build
from rlrun.plugins.types import Group, Sample
from rlrun.plugins.validation import load_checked_spec, needs_of
from rlrun.runner.checkpoints.reading import read_driver
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from rlrun.runner.cluster.actors import TrainerActor
from rlrun.runner.cluster.start import POLICY
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.contracts.step_clock import BusyTimes
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.failures import Failure
from rlrun.runner.host.model_files import fetch_files, fetch_model
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.build_job import make_job
from rlrun.runner.job.inputs import read_inputs
from rlrun.runner.job.job import Progress
from rlrun.runner.job.loop import run
from rlrun.runner.job.model_exports import write_final_model
from rlrun.runner.job.starting_point import begin
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.planning.planned_model import resolve_for_job
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.scoring import RewardSpec

Result = TypeVar("Result")


class LocalRank:
    """The body of a trainer process, called in a thread."""

    def __init__(self, setup: TrainerSetup) -> None:
        self._actor = TrainerActor.__new__(TrainerActor)  # its own __init__ would redirect our output
        self._answer(self._actor.start(setup))

    async def run(self, method: str, *args: Any, deadline: float) -> tuple[Any, float]:
        return self._answer(self._actor.run(method, *args))

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        self._actor.close()

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, Failure):
            raise RuntimeError(answer.trace)
        return answer


class LocalGrader:
    """A spec's rewards, in this process."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        self._rewards = [(one.weight, build("rewards", one.type, one.params)) for one in rewards]
        self.busy = BusyTimes("rewards", "scoring")

    async def score(self, samples: Sequence[Sample]) -> None:
        with self.busy.working({sample.prompt.index for sample in samples}):
            for sample in samples:
                sample.reward = sum(weight * reward.score(sample) for weight, reward in self._rewards)


class LocalScorer(LocalGrader):
    """The rewards of training, and those of evaluation datasets with rewards of their own."""

    def grader_of(self, rewards: Sequence[RewardSpec]) -> LocalGrader:
        return LocalGrader(rewards)


class NoProcesses:
    """A cluster of no processes."""

    def peak_memory(self) -> dict[str, float]:
        return {}


@dataclass
class Lines:
    """A journal that keeps every step's metrics."""

    lines: list[dict[str, float]] = field(default_factory=list)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.lines.append({"step": step, **metrics})

    def samples(self, step: int, groups: Sequence[Group], removed: Sequence[Group] = ()) -> None:
        pass

    def evaluation(self, step: int, groups: object) -> None:
        pass

    def timeline(self, step: int, started: float, spans: object) -> None:
        pass

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        pass

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        return await work

    async def flush(self) -> None:
        pass

    @property
    def curve(self) -> list[dict[str, float]]:
        """Every step without what depends on the clock."""
        return [
            {name: value for name, value in line.items() if not name.startswith("perf/")}
            for line in self.lines
        ]


def run_local(spec_file: Path, folder: Path, overrides: Sequence[str] = (), port: int = 1) -> Lines:
    """Runs the spec to its end, from the newest checkpoint in `folder` if there is one."""
    written = load_checked_spec([spec_file], overrides).spec
    model = fetch_model(written.model)
    spec = resolve_for_job(written, model).spec
    plan = make_plan(spec, cores=1)
    journal = Lines()
    path = spec.teacher.path if spec.teacher else None
    teacher = None if path is None else str(fetch_files("teacher", path).folder)
    rank = LocalRank(
        TrainerSetup(
            spec_json=spec.model_dump_json(),
            model_folder=str(model.folder),
            rank=0,
            device="cpu",
            world_size=1,
            master_addr="127.0.0.1",
            master_port=port,
            threads=1,
            optimizer_steps=plan.optimizer_steps or 1,
            teacher_folder=teacher,
        )
    )
    server = _server(spec, plan, model.folder) if plan.engines else None
    try:
        asyncio.run(_run(spec, plan, rank, server, folder=folder, journal=journal))
    finally:
        rank.close()
        if server is not None:
            server.stop()
    return journal


async def _run(
    spec: Spec, plan: Plan, rank: LocalRank, server: NativeServer | None, *, folder: Path, journal: Lines
) -> None:
    assert plan.steps is not None
    pool = EnginePool([EngineClient(server.start(), own=True)]) if server is not None else None
    model = fetch_model(spec.model)
    needs = needs_of(spec)
    path = spec.teacher.path if spec.teacher else None
    inputs = read_inputs(spec, model.folder, needs, teacher=None if path is None else Path(path))
    trainer = TrainerGroup([rank])
    parts = RunningJob(
        plan,
        plan.steps,
        inputs,
        NoProcesses(),
        None,  # type: ignore[arg-type]
        trainer,
        {},
        {} if pool is None else {POLICY: pool},
        LocalScorer(spec.rewards),  # type: ignore[arg-type]
    )
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoints", spec.checkpoint.keep)
    own = RunFolder(folder)
    job = make_job(spec, model, parts, journal, checkpoints, stop=StopRequest(), folder=own)  # type: ignore[arg-type]
    progress = await begin(spec, trainer, job.algorithm)
    if (newest := checkpoints.newest()) is not None:
        driver = read_driver(newest)
        progress = Progress(**driver["progress"])
        await trainer.load(trainer_folder(newest))
        await job.source.restore(driver["data"])
    await run(job, progress)
    if spec.checkpoint.export_hf:
        await write_final_model(job, progress, own)
    await job.source.close()
    if pool is not None:
        await pool.close()


def _server(spec: Spec, plan: Plan, model: Path) -> NativeServer:
    return NativeServer(
        EngineSetup(
            model_folder=str(model),
            job=spec.name,
            dtype=spec.engine.dtype,
            head_dtype=spec.trainer.head_dtype,
            max_running=spec.engine.max_running,
            max_length=plan.max_sample_tokens,
            threads=1,
            seed=spec.seed,
            device="cpu",
        )
    )
