"""A world small enough to reason about: responses are one token, 1 (good) or 0, and the policy is P(1)."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from rlrun.converters.folders.checksums import Digests, checksum, find_problems
from rlrun.plugins.rollouts.single_turn import SingleTurn, SingleTurnParams
from rlrun.plugins.types import Drop, Group, Needs, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.batches.packing import MicroBatches, plan_steps
from rlrun.runner.contracts.carriers import (
    GenerateRequest,
    Generation,
    Output,
    Role,
    TrainSequence,
    TrainStep,
)
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.specs.needs import Statistic

Result = TypeVar("Result")


def prompt(index: int, length: int = 3) -> Prompt:
    return Prompt(
        Row(str(index), f"prompt {index}", label="1"), index, np.full(length, index, dtype=np.int32)
    )


def sample(
    index: int = 0, number: int = 0, reward: float = 0.0, length: int = 1, **changes: object
) -> Sample:
    ones = np.ones(length, dtype=np.float32)
    values = {
        "id": f"{index}-{number}",
        "prompt": prompt(index),
        "tokens": np.ones(length, dtype=np.int32),
        "log_probs": -ones,
        "loss_mask": ones,
        "versions": (VersionSpan(0, 0, length),),
        "status": Status.COMPLETED,
        "text": "1",
        "reward": reward,
    }
    return Sample(**(values | changes))  # type: ignore[arg-type]


class Prompts:
    """Prompts 0, 1, 2 … for ever."""

    steering = None

    def __init__(self) -> None:
        self.place = 0

    def take(self, count: int) -> list[Prompt]:
        self.place += count
        return [prompt(index) for index in range(self.place - count, self.place)]

    def ahead(self, count: int) -> Prefetcher[Prompt]:
        return Prefetcher(lambda: self.take(count), lambda: {"place": self.place}, self._seek)

    def _seek(self, state: Mapping[str, int]) -> None:
        self.place = state["place"]


class Instant(Prompts):
    """Reads so many at a time without a thread, so that a test's turns of the event loop mean something."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def next(self) -> list[Prompt]:
        return self.take(self.count)

    def state(self) -> dict[str, int]:
        return {"place": self.place}

    async def restore(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    async def close(self) -> None:
        pass


class Engines:
    """Answers from P(1), each prompt when `ready` says so."""

    def __init__(self, finish: str = "stop") -> None:
        self.probability = 0.5
        self.version = -1
        self.requests: list[GenerateRequest] = []
        self.batches: list[int] = []
        self.aborted = 0
        self.finish = finish
        self.never: set[int] = set()
        self.broken: set[int] = set()
        self.order: Callable[[int], int] = lambda index: 0
        self._abort = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.requests.append(request)
        index, version = int(request.tokens[0]), self.version
        if index in self.broken:
            raise EngineError("500")
        for _ in range(self.order(index)):
            await asyncio.sleep(0)
        if index in self.never:
            self._abort.clear()
            await self._abort.wait()
            return [self._generation(seed, "abort", version) for seed in request.seeds]
        return [self._generation(seed, self.finish, version) for seed in request.seeds]

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        self.batches.append(len(requests))
        return [await self.generate(request) for request in requests]

    async def abort(self, request: GenerateRequest) -> None:
        self._abort.set()

    async def abort_all(self) -> None:
        self.aborted += 1
        self._abort.set()

    async def update_weights(self, manifest: WeightManifest) -> int:
        self.probability = float(manifest.segment)
        self.version = manifest.version
        return manifest.version

    def _generation(self, seed: int, finish: str, version: int) -> Generation:
        good = random.Random(seed).random() < self.probability
        log_prob = np.log(self.probability if good else 1 - self.probability)
        return Generation(
            np.array([int(good)], dtype=np.int32),
            np.array([log_prob], dtype=np.float32),
            finish,  # type: ignore[arg-type]
            (VersionSpan(version, 0, 1),),
            cached_tokens=2,
        )


class Grader:
    """Gives each sample its first token as reward."""

    def __init__(self) -> None:
        self.fails: set[int] = set()

    async def score(self, samples: Sequence[Sample]) -> None:
        await asyncio.sleep(0)
        for one in (one for one in samples if one.status.is_finished):
            one.reward = float(one.tokens[0])
            one.rewards["good"] = one.reward
            if one.prompt.index in self.fails:
                one.status, one.reward, one.failure = Status.FAILED, float("nan"), "crashed"


class Decoder:
    def decode_batch(self, batch: Sequence[np.ndarray]) -> list[str]:
        return [str(tokens.tolist()) for tokens in batch]


class Relative:
    """Rewards relative to their group."""

    def __init__(self, needs: Needs | None = None) -> None:
        self.needs = needs or Needs(group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[np.ndarray]:
        arrays = []
        for group in groups:
            mean = np.mean([one.reward for one in group.samples])
            arrays += [np.full(len(one.tokens), one.reward - mean, np.float32) for one in group.samples]
        return arrays

    def returns(self, groups: Sequence[Group]) -> list[np.ndarray]:
        return [np.full(len(one.tokens), one.reward, np.float32) for group in groups for one in group.samples]


class Trainer:
    """Policy gradient on the logit of P(1)."""

    def __init__(self, events: list[str] | None = None) -> None:
        self.logit = 0.0
        self.events = events if events is not None else []
        self.trained: list[list[TrainSequence]] = []
        self.begun, self.written = asyncio.Event(), asyncio.Event()
        self.fail: Exception | None = None

    async def compute(
        self,
        role: Role,
        outputs: Sequence[Output],
        sequences: Sequence[TrainSequence],
        micro_batches: MicroBatches,
        *,
        data_ranks: Sequence[int],
    ) -> dict[Output, list[np.ndarray]]:
        self.events.append(f"{role} {' '.join(outputs)}")
        return {name: [self._numbers(role, name, one) for one in sequences] for name in outputs}

    def _numbers(self, role: Role, output: Output, one: TrainSequence) -> np.ndarray:
        if output == "values":
            assert role == "critic"
            return np.append(np.full(len(one.loss_mask), 0.5), 0.75).astype(np.float32)
        if output in get_args(Statistic):
            return np.full(len(one.loss_mask), 0.25 * len(output), np.float32)
        shift = {"policy": 0, "reference": 0, "teacher": 1}[role]
        return one.rollout_log_probs - shift

    async def train(
        self,
        role: Role,
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep],
        *,
        data_ranks: Sequence[int],
    ) -> list[dict[str, float]]:
        self.events.append(f"train {role}")
        if role == "critic":
            return [{"train/value_loss": 1.0} for _ in steps]
        self.trained.append(list(sequences))
        for step in steps:
            self.logit += sum(
                scale * (2 * float(sequences[i].tokens[-1]) - 1) * float(sequences[i].advantages[0])
                for i, scale in step.scale.items()
            )
        return [{"train/loss": -self.logit, "train/lr": 1.0 / (n + 1)} for n in range(len(steps))]

    async def update_reference(self) -> None:
        self.events.append("update reference")

    async def write_weights(self, version: int) -> WeightManifest:
        self.events.append(f"weights {version}")
        return WeightManifest(str(1 / (1 + np.exp(-self.logit))), 8, version, ())

    async def save(self, folder: Path) -> Digests:
        self.events.append("save")
        if self.fail:
            raise self.fail
        return self._write(folder)

    async def begin_save(self, folder: Path) -> None:
        self.events.append("begin save")
        self.written.clear()
        self.begun.set()
        self.digests = self._write(folder)

    async def saved(self) -> Digests:
        await self.written.wait()
        if self.fail:
            raise self.fail
        return self.digests

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        return find_problems(folder, digests)

    def _write(self, folder: Path) -> Digests:
        text = repr(self.logit)
        (folder / "logit").write_text(text)
        return {str(folder / "logit"): checksum(text.encode())}

    async def load(self, folder: Path) -> None:
        self.logit = float((folder / "logit").read_text())

    async def export_hf(self, folder: Path) -> None:
        self.events.append(f"export {folder.name}")

    def seconds_used(self) -> float:
        return 0.0


class Journal:
    """A journal that records what it is told."""

    def __init__(self, events: list[str] | None = None) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.events = events if events is not None else []

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.events.append(f"metrics {step}")
        self.lines.append((step, metrics))

    def samples(self, step: int, groups: Sequence[Group], removed: Sequence[Group] = ()) -> None:
        self.events.append(f"samples {step}")

    def evaluation(self, step: int, groups: Mapping[str, Sequence[Group]]) -> None:
        self.events.append(f"evaluated {step}")

    def timeline(self, step: int, started: float, spans: Sequence[Span]) -> None:
        pass

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        pass

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        return await work

    async def flush(self) -> None:
        self.events.append("flush")


def policy(
    engines: Engines, grader: Grader | None = None, *, deterministic: bool = False, rollout: object = None
) -> RolloutContext:
    return RolloutContext(
        engines,
        Decoder(),  # type: ignore[arg-type]
        grader or Grader(),
        seed=7,
        rollout=rollout or SingleTurn(SingleTurnParams()),
        deterministic=deterministic,
    )


def pack(optimizer_steps: int = 1) -> Callable[[Sequence[TrainSequence]], list[TrainStep]]:
    return lambda sequences: plan_steps(
        sequences,
        optimizer_steps=optimizer_steps,
        reduction="per_sample_mean",
        max_batch_tokens=64,
        max_length=64,
        max_response_tokens=1,
        data_degree=1,
    )


def drop_even(group: Group) -> Drop | None:
    return Drop("even") if group.prompt.index % 2 == 0 else None
