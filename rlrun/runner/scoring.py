"""Scores samples in reward processes, so that no reward can hang, crash or corrupt the job.

    score(samples) -> chunks -> queue -> one task a process: RewardProcess.outcomes -> sample.reward, .rewards

A reward that hangs, crashes, raises or returns nan makes an error of that sample; `on_error` says what then;
the other samples keep their scores.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from rlrun.plugins.types import Sample, Status
from rlrun.runner.errors import JobError
from rlrun.runner.reward_process import Outcome, ProcessDied, RewardProcess
from rlrun.runner.scoring_worker import RewardSetup, Task
from rlrun.specs.scoring import RewardSpec, ScoringSpec
from rlrun.specs.section import PluginSection

logger = logging.getLogger(__name__)

LARGEST_CHUNK = 16
"""Samples a process is given at a time: few enough to share the work out, enough to make messages cheap."""

_UNFINISHED = (Status.FAILED, Status.ABORTED)


class RewardError(JobError):
    """A reward failed and the spec says to stop; names the plugin, the sample and the cause."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    samples: Sequence[Sample]
    done: asyncio.Future[None]


class Scorer:
    """All rewards of a job, in `scoring.workers` processes."""

    def __init__(
        self, rewards: Sequence[RewardSpec], scoring: ScoringSpec, log_folder: Path | None = None
    ) -> None:
        """`log_folder` gets `reward-<i>.log`: what rewards print. None: it is thrown away."""
        self.errors: Counter[str] = Counter()
        """Failures so far by reward."""
        self.names = unique_names(rewards)
        self._specs = tuple(rewards)
        self._scoring = scoring
        setups = [
            RewardSetup(name, spec.type, spec.params, spec.key)
            for name, spec in zip(self.names, rewards, strict=True)
        ]
        logs = [log_folder and log_folder / f"reward-{number}.log" for number in range(scoring.workers)]
        self._processes = [RewardProcess(setups, scoring, log) for log in logs]
        self._chunks: asyncio.Queue[_Chunk] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when every process has imported and built its rewards. JobError when one cannot."""
        if not self._specs:
            return
        try:
            async with asyncio.TaskGroup() as group:
                for process in self._processes:
                    group.create_task(process.start())
        except* JobError as errors:
            await self.close()
            raise errors.exceptions[0] from None
        self._tasks = [asyncio.create_task(self._serve(process)) for process in self._processes]

    async def score(self, samples: Sequence[Sample]) -> None:
        """Fills `rewards` and `reward` (their weighted sum), and `failure` where a reward failed.

        A sample that `on_error = "drop"` gives up has status failed and reward NaN. RewardError under `stop`,
        and always where a reward's `key` does not fit what it returns. Samples whose generation failed or was
        aborted are left alone.
        """
        samples = [sample for sample in samples if sample.status not in _UNFINISHED]
        if not self._specs or not samples:
            return
        assert self._tasks, "start() comes first"
        size = min(LARGEST_CHUNK, ceil(len(samples) / len(self._processes)))
        loop = asyncio.get_running_loop()
        chunks = [
            _Chunk(samples[begin : begin + size], loop.create_future())
            for begin in range(0, len(samples), size)
        ]
        for chunk in chunks:
            self._chunks.put_nowait(chunk)
        await asyncio.gather(*(chunk.done for chunk in chunks))

    async def close(self) -> None:
        """End every process at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(process.stop() for process in self._processes))

    async def _serve(self, process: RewardProcess) -> None:
        while True:
            chunk = await self._chunks.get()
            try:
                await self._score_chunk(process, chunk.samples)
            except Exception as error:
                await process.stop()  # it may still be answering what nobody reads any more
                if not chunk.done.done():
                    chunk.done.set_exception(error)
            else:
                if not chunk.done.done():
                    chunk.done.set_result(None)

    async def _score_chunk(self, process: RewardProcess, samples: Sequence[Sample]) -> None:
        tasks = [Task(sample) for sample in samples]
        while tasks:
            pairs = [
                (at, reward) for at, task in enumerate(tasks) for reward in range(task.first, len(self.names))
            ]
            done = 0
            try:
                async with aclosing(process.outcomes(tasks)) as outcomes:
                    async for outcome in outcomes:
                        self._record(tasks[outcome.sample].sample, outcome, process)
                        done += 1
                break
            except ProcessDied as death:
                at, reward = pairs[done]
                self._record(tasks[at].sample, Outcome(at, reward, None, str(death)), process)
                await process.spawn()
                tasks = _after(tasks, pairs[done + 1 :])
        for sample in samples:
            sample.reward = self._total(sample)

    def _record(self, sample: Sample, outcome: Outcome, process: RewardProcess) -> None:
        name = self.names[outcome.reward]
        if outcome.value is not None:
            sample.rewards[name] = outcome.value
            return
        self.errors[name] += 1
        if outcome.fatal:
            raise RewardError(f"reward {name!r} {outcome.problem}")
        message = f"reward {name!r} on sample {sample.id}: {outcome.problem}"
        policy = self._scoring.on_error
        if policy == "stop":
            raise RewardError(f'{message} (scoring.on_error = "stop")', process.log_end())
        sample.failure = message
        if policy == "zero":
            sample.rewards[name] = 0.0
        else:
            sample.status = Status.FAILED
        logger.warning("%s; %s", message, "counted as 0" if policy == "zero" else "sample dropped")

    def _total(self, sample: Sample) -> float:
        if sample.status is Status.FAILED:
            return float("nan")
        weighted = zip(self._specs, self.names, strict=True)
        return sum(spec.weight * sample.rewards[name] for spec, name in weighted)


def unique_names(plugins: Sequence[PluginSection]) -> list[str]:
    """One name a plugin: its type, numbered from the second of a type on (`format`, `format_2`)."""
    seen: Counter[str] = Counter()
    names = []
    for spec in plugins:
        seen[spec.type] += 1
        names.append(spec.type if seen[spec.type] == 1 else f"{spec.type}_{seen[spec.type]}")
    return names


def _after(tasks: Sequence[Task], remaining: Sequence[tuple[int, int]]) -> list[Task]:
    """The tasks that `remaining` (task, reward) pairs leave to do."""
    if not remaining:
        return []
    at, reward = remaining[0]
    return [Task(tasks[at].sample, reward), *tasks[at + 1 :]]
