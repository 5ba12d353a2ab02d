"""Scores samples in reward processes, so that no reward can hang, crash or corrupt the job.

    score(samples) -> chunks -> queue -> one task per process -> RewardProcess -> sample.reward, .rewards

The samples of training have all rewards of `[[rewards]]`. An evaluation dataset may have others, which the
same processes compute: `grader_of` returns what scores with those.

Where a reward hangs, crashes, raises or returns NaN, only that sample has an error, which `scoring.on_error`
handles; all other samples keep their scores. A reward with a `late_score` gives it to samples that hang.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from rlrun.plugins.engines import Address, as_environment
from rlrun.plugins.failures import Failure
from rlrun.plugins.types import Sample, Status
from rlrun.runner.contracts.environment import Environment
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import Grader
from rlrun.runner.contracts.step_clock import BusyTimes
from rlrun.runner.scoring.process import ProcessDied, RewardProcess
from rlrun.runner.scoring.protocol import Outcome, RewardSetup, Shape, Task, group_key
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec
from rlrun.specs.sections.section import PluginSection

logger = logging.getLogger(__name__)
MAX_CHUNK = 16
"""The most samples that a process is sent at once: few enough to spread the work, enough to keep it busy."""


class RewardError(JobError):
    """A reward failed and the spec says to stop; the message names the reward, the sample and the cause."""

    code = Code.REWARD


class _Retries:
    """The rewards of a chunk that are computed again after failures of the infrastructure."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.pause = 0.0
        """Seconds until they are computed."""
        self._attempts: Counter[tuple[str, int]] = Counter()
        """How often a reward was computed again, by sample and reward."""

    def add(self, sample: Sample, outcome: Outcome, environment: Environment) -> bool:
        """Adds a reward if it is to be computed again; returns whether it is."""
        if outcome.value is not None or not outcome.problem:
            return False
        key = sample.id, outcome.reward_index
        pause = environment.pause_before_retry(outcome.failure, self._attempts[key])
        if pause is None:
            return False
        self._attempts[key] += 1
        self.pause = max(self.pause, pause)
        self.tasks.append(Task(sample, (outcome.reward_index,)))
        logger.info("reward on sample %s: %s; it is computed again", sample.id, outcome.problem)
        return True

    def take(self) -> list[Task]:
        """Returns the tasks, and forgets them."""
        tasks, self.tasks, self.pause = self.tasks, [], 0.0
        return tasks


@dataclass(frozen=True, slots=True)
class _Chunk:
    samples: Sequence[Sample]
    rewards: tuple[int, ...]
    """The indices of the rewards that score the samples."""
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _OwnRewards:
    """Scores samples with some of a scorer's rewards."""

    scorer: "Scorer"
    rewards: tuple[int, ...]

    async def score(self, samples: Sequence[Sample]) -> None:
        """Sets `reward` and `rewards` of each sample, or `failure` if a reward could not be computed."""
        await self.scorer.score_with(self.rewards, samples)


class Scorer:
    """Scores samples with the rewards of a job, in `scoring.workers` processes."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        scoring: ScoringSpec,
        log_folder: Path | None = None,
        usual_key: str | None = None,
        retries: int = 0,
        *,
        evaluated: Sequence[Sequence[RewardSpec]] = (),
    ) -> None:
        """`evaluated` has the rewards of evaluation datasets, those of training among them or not.

        `log_folder` receives `reward-<i>.log`, the output of each process; None discards it.

        `usual_key` is the key of the score in a returned table where the spec has no `key`; None: an error.
        `retries` is how often a reward is computed again after a failure of the infrastructure.
        """
        self.errors: Counter[str] = Counter()
        """Number of failures so far, by reward."""
        self.busy = BusyTimes("rewards", "scoring")
        self._specs = with_own_rewards(rewards, evaluated)
        self._of_training = tuple(range(len(rewards)))
        self.names = unique_names(self._specs)
        self._environments = [Environment(f"reward {name!r}", retries) for name in self.names]
        self._scoring = scoring
        setups = [
            RewardSetup(name, spec.type, spec.params, spec.key, spec.type_key, usual_key)
            for name, spec in zip(self.names, self._specs, strict=True)
        ]
        logs = [log_folder and log_folder / f"reward-{number}.log" for number in range(scoring.workers + 1)]
        *self._processes, self._spare = (RewardProcess(setups, scoring, log) for log in logs)
        self._chunks: asyncio.Queue[_Chunk] = asyncio.Queue()
        self._shapes: Sequence[Shape] = ()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, engines: Mapping[str, Sequence[Address]] | None = None) -> None:
        """Returns when every process has built its rewards, which may send requests to `engines`.

        JobError when a process cannot.
        """
        if not self._specs:
            return
        for process in [*self._processes, self._spare]:
            process.environment = as_environment(engines or {})
        try:
            async with asyncio.TaskGroup() as group:
                for process in self._processes:
                    group.create_task(process.start())
        except* JobError as errors:
            await self.close()
            raise errors.exceptions[0] from None
        self._shapes = self._processes[0].shapes
        await self._spare.spawn()
        self._tasks = [asyncio.create_task(self._serve(place)) for place in range(len(self._processes))]

    async def score(self, samples: Sequence[Sample]) -> None:
        """Scores samples with the rewards of training (`score_with`)."""
        await self.score_with(self._of_training, samples)

    def grader_of(self, rewards: Sequence[RewardSpec]) -> Grader:
        """Returns what scores samples with these rewards, which are those of an evaluation dataset."""
        return _OwnRewards(self, indices_of(rewards, self._specs))

    async def score_with(self, rewards: tuple[int, ...], samples: Sequence[Sample]) -> None:
        """Sets `rewards` and `reward` (their weighted sum), and `failure` where a reward failed.

        With `on_error = "drop"` a failed sample has status failed and reward NaN; with `stop` RewardError is
        raised, as always where a reward's `key` does not match what it returns. A failure of the
        infrastructure is never a reward: `zero` drops its sample, too, and JobError is raised if nearly all
        samples fail like this. Samples whose generation failed or was aborted are not scored.
        """
        samples = [sample for sample in samples if sample.status.is_finished]
        if not rewards or not samples:
            return
        assert self._tasks, "start() comes first"
        loop = asyncio.get_running_loop()
        chunks = [_Chunk(chunk, rewards, loop.create_future()) for chunk in self._split(samples, rewards)]
        for chunk in chunks:
            self._chunks.put_nowait(chunk)
        with self.busy.working({sample.prompt.index for sample in samples}):
            await asyncio.gather(*(chunk.done for chunk in chunks))

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        processes = [*self._processes, self._spare]
        return [process.pid for process in processes if process.pid is not None]

    async def close(self) -> None:
        """Kills every process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(process.stop() for process in [*self._processes, self._spare]))

    async def _serve(self, number: int) -> None:
        while True:
            chunk = await self._chunks.get()
            try:
                await self._score_chunk(number, chunk.samples, chunk.rewards)
            except Exception as error:
                await self._processes[number].stop()  # it may still be answering what nobody reads any more
                if not chunk.done.done():
                    chunk.done.set_exception(error)
            else:
                if not chunk.done.done():
                    chunk.done.set_result(None)

    def _split(self, samples: Sequence[Sample], rewards: tuple[int, ...]) -> list[Sequence[Sample]]:
        """Splits samples into chunks, with whole groups where a reward scores groups."""
        shapes = [self._shapes[reward] for reward in rewards]
        largest = MAX_CHUNK
        if any(shape.is_async for shape in shapes):
            largest = max(largest, self._scoring.concurrency)
        size = min(largest, ceil(len(samples) / len(self._processes)))
        if any(shape.is_grouped for shape in shapes):
            return whole_groups(samples, size)
        return [samples[begin : begin + size] for begin in range(0, len(samples), size)]

    async def _replace(self, number: int) -> None:
        """Replaces a process that died by the spare, which has started already, and starts another spare."""
        self._processes[number], self._spare = self._spare, self._processes[number]
        await self._spare.spawn()

    async def _score_chunk(self, number: int, samples: Sequence[Sample], rewards: tuple[int, ...]) -> None:
        numbers = {
            (sample.id, reward): self._environments[reward].begin()
            for sample in samples
            for reward in rewards
        }
        batches = deque([[Task(sample, rewards) for sample in samples]])
        retries = _Retries()
        while batches or retries.tasks:
            if not batches:
                await asyncio.sleep(retries.pause)
                batches.append(retries.take())
            tasks, process = batches.popleft(), self._processes[number]
            open_pairs = {(index, reward) for index, task in enumerate(tasks) for reward in task.rewards}
            try:
                async with aclosing(process.outcomes(tasks)) as outcomes:
                    async for outcome in outcomes:
                        open_pairs.discard((outcome.task, outcome.reward_index))
                        sample, reward = tasks[outcome.task].sample, outcome.reward_index
                        if not retries.add(sample, outcome, self._environments[reward]):
                            self._record(sample, outcome, process)
                            self._environments[reward].record(numbers[sample.id, reward], *_ending(outcome))
            except ProcessDied as death:
                if death.call is not None:
                    reward = death.call.reward_index
                    value = process.shapes[reward].late_score if death.late else None
                    for index in death.call.tasks:
                        open_pairs.discard((index, reward))
                        failure = Failure.LATE if death.late else Failure.ERROR
                        outcome = Outcome(index, reward, value, str(death), failure)
                        self._record(tasks[index].sample, outcome, process)
                        self._environments[reward].record(numbers[tasks[index].sample.id, reward])
                await self._replace(number)
                grouped = [] if death.call is not None else [shape.is_grouped for shape in process.shapes]
                batches.extendleft(reversed(unfinished_batches(tasks, open_pairs, grouped)))
        weights = {self.names[reward]: self._specs[reward].weight for reward in rewards}
        for sample in samples:
            sample.reward_weights = weights
            sample.reward = _total(sample, weights)

    def _record(self, sample: Sample, outcome: Outcome, process: RewardProcess) -> None:
        name = self.names[outcome.reward_index]
        if outcome.value is not None:
            sample.rewards[name] = outcome.value
            if outcome.problem:
                self.errors[name] += 1
                logger.warning(
                    "reward %r on sample %s: %s; scored %g", name, sample.id, outcome.problem, outcome.value
                )
            if outcome.detail is not None:
                sample.reward_details[name] = outcome.detail
            return
        self.errors[name] += 1
        if outcome.fatal:
            raise RewardError(f"reward {name!r} {outcome.problem}")
        message = f"reward {name!r} on sample {sample.id}: {outcome.problem}"
        policy = self._scoring.on_error
        if policy == "stop":
            raise RewardError(f'{message} (scoring.on_error = "stop")', process.log_end())
        sample.failure, sample.failure_type = message, outcome.failure
        if outcome.failure.is_infrastructure:
            policy = "drop"  # it says nothing about the sample, so it is never a reward
        if policy == "zero":
            sample.rewards[name] = 0.0
        else:
            sample.status = Status.FAILED
        logger.warning("%s; %s", message, "counted as 0" if policy == "zero" else "sample dropped")


def _total(sample: Sample, weights: Mapping[str, float]) -> float:
    if sample.status is Status.FAILED:
        return float("nan")
    return math.fsum(weight * sample.rewards[name] for name, weight in weights.items())


def with_own_rewards(
    rewards: Sequence[RewardSpec], evaluated: Sequence[Sequence[RewardSpec]]
) -> list[RewardSpec]:
    """Returns the rewards of training, then those that only evaluation datasets have, each once."""
    specs = list(rewards)
    for own in evaluated:
        specs += [spec for spec, index in zip(own, _indices(own, specs), strict=True) if index is None]
    return specs


def indices_of(rewards: Sequence[RewardSpec], specs: Sequence[RewardSpec]) -> tuple[int, ...]:
    """Returns the index in `specs` of each reward; two equal ones have two indices."""
    indices = _indices(rewards, specs)
    assert None not in indices, "the scorer was made with the rewards of all datasets"
    return tuple(index for index in indices if index is not None)


def _indices(rewards: Sequence[RewardSpec], specs: Sequence[RewardSpec]) -> list[int | None]:
    """Returns the index in `specs` of each reward, None for one that is not there (so often)."""
    free = dict(enumerate(specs))
    indices: list[int | None] = []
    for reward in rewards:
        index = next((index for index, spec in free.items() if spec == reward), None)
        if index is not None:
            del free[index]
        indices.append(index)
    return indices


def _ending(outcome: Outcome) -> tuple[Failure | None, str]:
    """Returns how a reward ended for its environment: other errors may be those of the sample."""
    failed = outcome.value is None and outcome.failure.is_infrastructure
    return (outcome.failure, outcome.problem) if failed else (None, "")


def unique_names(plugins: Sequence[PluginSection]) -> list[str]:
    """Returns one name per plugin: its type, numbered from the second of a type on (`format`, `format_2`).

    Of a plugin in a file it is the function or class: `exact` for `my_rewards.py:exact`.
    """
    seen: Counter[str] = Counter()
    names = []
    for spec in plugins:
        name = spec.type.rpartition(":")[2]
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def whole_groups(samples: Sequence[Sample], size: int) -> list[Sequence[Sample]]:
    """Returns chunks of at least `size` samples (the last may have fewer) that never split a group."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(group_key(sample), []).append(sample)
    chunks: list[list[Sample]] = []
    for members in groups.values():
        if chunks and len(chunks[-1]) < size:
            chunks[-1] += members
        else:
            chunks.append(list(members))
    return list(chunks)


def unfinished_batches(
    tasks: Sequence[Task], pairs: set[tuple[int, int]], grouped: Sequence[bool]
) -> list[list[Task]]:
    """Returns the batches that finish the work of a process that died.

    `pairs` are the unfinished (task, reward) pairs, as indices. Where it is not known which call ended the
    process, `grouped` holds for each reward whether one call scores a whole group, and every call gets a
    batch of its own. If `grouped` is empty, the rest is one batch.
    """
    batches: dict[object, list[Task]] = {}
    for index, task in enumerate(tasks):
        rewards = tuple(reward for reward in task.rewards if (index, reward) in pairs)
        if not grouped and rewards:
            batches.setdefault(None, []).append(Task(task.sample, rewards))
        for reward in rewards if grouped else ():
            call = (reward, *group_key(task.sample)) if grouped[reward] else (reward, index)
            batches.setdefault(call, []).append(Task(task.sample, (reward,)))
    return list(batches.values())
