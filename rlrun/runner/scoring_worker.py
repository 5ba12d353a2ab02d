"""The reward process, started and killed by rlrun.runner.reward_process.

    stdin:  one Setup, then batches of Task, pickled          (from the parent, which we trust)
    stdout: one JSON line when ready, then one for each (sample, reward)

Whatever a reward prints goes to stderr, so that it cannot garble the answers. Answers are written one by one:
when a reward hangs or dies, the parent knows which one it was, on which sample, and has all answers before.
"""

import ctypes
import json
import math
import numbers
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.plugins.protocols import Reward
from rlrun.plugins.registry import build
from rlrun.plugins.types import Rewarded, Sample

Answer = dict[str, Any]

PR_SET_PDEATHSIG = 1
LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class RewardSetup:
    """One reward to build."""

    name: str
    """Unique in the spec; stands in metrics and messages."""
    type: str
    params: Mapping[str, Any]
    key: str | None


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process needs before the first sample."""

    rewards: tuple[RewardSetup, ...]
    parent: int
    """Process id of the driver."""
    memory: float | None
    """GiB of address space it may use."""


@dataclass(frozen=True, slots=True)
class Task:
    """A sample to score with the rewards from `first` on."""

    sample: Sample
    first: int = 0


class MissingKey(Exception):
    """The spec's `key` and what the reward returns do not fit: the spec is wrong, not the sample."""


def main() -> None:
    """Build the rewards, say so, then answer batches until stdin ends."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())

    def send(answer: Answer) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")

    setup: Setup = pickle.load(requests)
    _die_with(setup.parent)
    _limit_memory(setup.memory)
    try:
        rewards = [build("rewards", reward.type, reward.params) for reward in setup.rewards]
    except ValueError as error:
        send({"problem": str(error)})
        return
    send({"ready": True})
    while True:
        try:
            batch: Sequence[Task] = pickle.load(requests)
        except EOFError:
            return
        for index, task in enumerate(batch):
            _score(index, task, setup.rewards, rewards, send)


def _score(
    index: int,
    task: Task,
    setups: Sequence[RewardSetup],
    rewards: Sequence[Reward],
    send: Callable[[Answer], None],
) -> None:
    for number in range(task.first, len(rewards)):
        answer: Answer = {"sample": index, "reward": number}
        try:
            answer["value"] = measured(rewards[number].score(task.sample), setups[number].key)
        except MissingKey as error:
            answer |= {"problem": str(error)[:LONGEST_MESSAGE], "fatal": True}
        except BaseException as error:  # the boundary to rewards: even their sys.exit() is one sample's error
            traceback.print_exc()
            answer["problem"] = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
        send(answer)


def measured(rewarded: Rewarded, key: str | None) -> float:
    """The finite number in a reward's answer; MissingKey where `key` does not fit it, else ValueError."""
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
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}")
    return number


def _die_with(parent: int) -> None:
    """Have Linux kill this process when the driver dies, hung or not; elsewhere the end of stdin does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the driver is gone")


def _limit_memory(gibibytes: float | None) -> None:
    """What asks for more gets a MemoryError; without it, one reward could take the whole machine down."""
    if gibibytes is not None:
        size = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
