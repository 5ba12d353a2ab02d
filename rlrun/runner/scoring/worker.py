"""The program of a reward process, which rlrun.runner.scoring.process starts and kills.

    stdin:  one Setup, then batches of Task, pickled          (from the driver, which is trusted)
    stdout: one JSON line when ready, then one for each task and reward

Rewards print to stderr, so that they cannot garble the answers. Answers are written one by one: when a reward
hangs or crashes, the driver knows which reward and which sample it was, and has all earlier answers.
"""

import asyncio
import inspect
import json
import numbers
import os
import pickle
import resource
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from rlrun.plugins import deadline
from rlrun.plugins.environments.worker import die_with_driver
from rlrun.plugins.failures import failure_of
from rlrun.plugins.registry import build
from rlrun.plugins.types import Rewarded, Sample
from rlrun.runner.host.stacks import write_when_asked
from rlrun.runner.scoring.protocol import Call, RewardSetup, Setup, Shape, Task, schedule
from rlrun.runner.scoring.slime_names import reward_of_slime

Answer = dict[str, Any]
MAX_MESSAGE_LENGTH = 500
MAX_REWARD = 1e30
"""The largest magnitude of a reward: sums, squares and float32 tensors can hold it."""


def main() -> None:
    """Builds the rewards, reports that they are ready, and answers batches until stdin ends."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())

    def send(answer: Answer) -> None:
        answers.write(json.dumps(answer, default=str).encode() + b"\n")

    write_when_asked()
    setup: Setup = pickle.load(requests)
    die_with_driver(setup.parent)
    os.environ[deadline.VARIABLE] = str(setup.timeout)
    _limit_memory(setup.memory)
    with asyncio.Runner() as runner:
        try:
            worker = _Worker(setup, send, runner)
        except ValueError as error:
            send({"problem": str(error)})
            return
        send({"shapes": [astuple(shape) for shape in worker.shapes]})
        while True:
            try:
                batch: Sequence[Task] = pickle.load(requests)
            except EOFError:
                return
            worker.answer(batch)


class _Worker:
    """Calls the rewards of this process and sends their answers."""

    def __init__(self, setup: Setup, send: Callable[[Answer], None], runner: asyncio.Runner) -> None:
        self._setup = setup
        self._send = send
        self._runner = runner
        self._rewards = [build("rewards", reward.type, reward.params) for reward in setup.rewards]
        self._chosen: dict[str, Any] = {}
        self._concurrency = asyncio.Semaphore(setup.concurrency)
        self.shapes = [_shape(reward) for reward in self._rewards]

    def answer(self, tasks: Sequence[Task]) -> None:
        """Makes every call of a batch, and sends an answer for each sample."""
        calls = schedule(tasks, self.shapes)
        for call in calls.sequential:
            samples = [tasks[task].sample for task in call.tasks]
            try:
                result = self._call(call, samples)
                if inspect.isawaitable(result):  # a reward that a row's metadata chose
                    result = self._runner.run(_awaited(result))
                self._report(call, result)
            except BaseException as error:  # the boundary to rewards: even sys.exit() only fails a sample
                self._fail(call, error)
        if calls.concurrent:
            self._runner.run(self._run_concurrently(calls.concurrent, tasks))

    async def _run_concurrently(self, calls: Sequence[Call], tasks: Sequence[Task]) -> None:
        await asyncio.gather(
            *(self._run_one(call, [tasks[task].sample for task in call.tasks]) for call in calls)
        )

    async def _run_one(self, call: Call, samples: Sequence[Sample]) -> None:
        seconds = self._setup.timeout * len(samples)
        async with self._concurrency:
            try:
                async with asyncio.timeout(seconds) as limit:
                    result = self._call(call, samples)
                    result = await result if inspect.isawaitable(result) else result
                self._report(call, result)
            except BaseException as error:  # the boundary to rewards
                late = isinstance(error, TimeoutError) and limit.expired()
                self._fail(call, error, late_problem(error, seconds) if late else "")

    def _call(self, call: Call, samples: Sequence[Sample]) -> Any:
        """Returns what the reward returns: an answer, or an awaitable of one."""
        if self.shapes[call.reward_index].is_grouped:
            return self._rewards[call.reward_index].score_group(samples)
        return self._reward_for(call.reward_index, samples[0]).score(samples[0])

    def _reward_for(self, number: int, sample: Sample) -> Any:
        """Returns the spec's reward, or the one that the row's metadata names."""
        setup = self._setup.rewards[number]
        named = sample.prompt.row.metadata.get(setup.type_key) if setup.type_key else None
        if not named or str(named).strip() == setup.type:
            return self._rewards[number]
        if named not in self._chosen:
            self._send({"loading": str(named)})
            try:
                name, params = reward_of_slime(str(named))
                self._chosen[named] = build("rewards", name, params)
            finally:
                self._send({"loaded": str(named)})
        if not hasattr(self._chosen[named], "score"):
            raise ValueError(f"reward {named!r} scores whole groups; a row's metadata cannot choose it")
        return self._chosen[named]

    def _report(self, call: Call, result: Any) -> None:
        """Sends the answers of a call that returned."""
        results = [result]
        if self.shapes[call.reward_index].is_grouped:
            results = list(result)
            if len(results) != len(call.tasks):
                raise ValueError(f"returned {len(results)} scores for {len(call.tasks)} samples")
        setup = self._setup.rewards[call.reward_index]
        scores = [measured(returned, setup.key or usual_key(returned, setup)) for returned in results]
        for task, score, returned in zip(call.tasks, scores, results, strict=True):
            answer: Answer = {"task": task, "reward_index": call.reward_index, "value": score}
            if isinstance(returned, Mapping):
                answer["detail"] = dict(returned)
            self._send(answer)

    def _fail(self, call: Call, error: BaseException, problem: str = "") -> None:
        if isinstance(error, MissingKey):
            problem = str(error)
        elif not problem:
            traceback.print_exception(error)
            problem = f"{type(error).__name__}: {error}"
        answer: Answer = {
            "reward_index": call.reward_index,
            "problem": problem[:MAX_MESSAGE_LENGTH],
            "failure": failure_of(error),
            "fatal": isinstance(error, MissingKey),
        }
        if isinstance(error, RecursionError | MemoryError):
            answer["value"] = self.shapes[call.reward_index].late_score
        for task in call.tasks:
            self._send({"task": task, **answer})


def _shape(reward: Any) -> Shape:
    is_grouped = hasattr(reward, "score_group")
    is_async = inspect.iscoroutinefunction(reward.score_group if is_grouped else reward.score)
    return Shape(is_async, is_grouped, getattr(reward, "late_score", None))


def late_problem(error: BaseException, seconds: float) -> str:
    """Returns the problem of a late sample, with the notes that the reward added when it was cancelled."""
    notes = getattr(error.__cause__, "__notes__", [])
    return "; ".join([f"took longer than {seconds:g} s (scoring.timeout)", *notes])


async def _awaited(result: Any) -> Any:
    return await result


def _limit_memory(gibibytes: float | None) -> None:
    """Limits the address space, so that a greedy reward gets a MemoryError and the host keeps running."""
    if gibibytes is not None:
        size = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


class MissingKey(Exception):
    """The spec's `key` does not match what the reward returns: an error of the spec, not of one sample."""


def usual_key(rewarded: object, setup: RewardSetup) -> str | None:
    """Returns the key of the score in a returned table, where the spec names none; None if it is missing."""
    return setup.usual_key if isinstance(rewarded, Mapping) and setup.usual_key in rewarded else None


def measured(rewarded: Rewarded, key: str | None) -> float:
    """Returns the score of a reward; MissingKey where `key` does not match it, else ValueError."""
    value: object = rewarded
    if isinstance(rewarded, Mapping):
        entries = ", ".join(map(str, rewarded)) or "nothing"
        if key is None:
            raise MissingKey(f"returns several values ({entries}); choose one with `key`")
        if key not in rewarded:
            raise MissingKey(f"returns {entries}, but `key` is {key!r}")
        value = rewarded[key]
    elif key is not None:
        raise MissingKey(f"returns one number, so `key` ({key!r}) has nothing to choose from; remove it")
    if not isinstance(value, numbers.Real | np.bool_):
        raise ValueError(f"returned {type(value).__name__} {value!r}, not a number")
    reward: Any = value  # it may be a Fraction or a whole number that no float can hold
    if not -MAX_REWARD <= reward <= MAX_REWARD:  # NaN makes it false
        raise ValueError(f"returned {str(reward)[:40]}; rewards are at most {MAX_REWARD:g} in magnitude")
    return float(reward)
