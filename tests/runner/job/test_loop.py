import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Group, Needs
from rlrun.runner.batches.model_handle import ModelHandle, Pack
from rlrun.runner.checkpoints.reading import read_driver
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from rlrun.runner.contracts.algorithm_state import restore_algorithm
from rlrun.runner.contracts.carriers import DIFFERENCE, Output, Role, TrainSequence, TrainStep
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.job.device_sharing import SharedDevices
from rlrun.runner.job.job import Job, Progress
from rlrun.runner.job.loop import run
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.demonstrations import DemonstrationSource, demonstration
from rlrun.runner.rollouts.evaluation import EvalResult
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.synchronous import SynchronousSource
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Journal, Prompts, Relative, Trainer, pack, policy

ENTROPIES, SQUARES = "policy log_probs policy_entropies", "policy_squared_probs"
SPEC = resolved_rollout(batch_size=4, samples_per_prompt=4, max_response_tokens=1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def handles(trainer: Trainer, needs: Needs, optimizer_steps: int) -> dict[Role, ModelHandle]:
    """The policy, and the models beside it that the algorithm needs."""
    roles: list[Role] = ["reference", "teacher", "critic"]
    held: list[Role] = ["policy", *(role for role in roles if getattr(needs, role))]
    return {role: ModelHandle(trainer, role, pack(optimizer_steps), [0]) for role in held}


class FakeEvaluation:
    def __init__(self, events: list[str], *rewards: float) -> None:
        self.events = events
        self.rewards = iter(rewards)

    async def run(self) -> EvalResult:
        self.events.append("eval")
        return EvalResult({"eval/held_out/reward": next(self.rewards, 0.5)}, {})


def job(folder: Path, steps: int = 3, optimizer_steps: int = 1, **changes: object) -> Job:
    trainer = changes.pop("trainer", None) or Trainer([])
    events = trainer.events
    engines = Engines()
    algorithm = changes.pop("algorithm", None) or Relative()
    parts = {
        "steps": steps,
        "source": SynchronousSource(
            SPEC, policy(engines, deterministic=True), Prompts().ahead(4), Filters([])
        ),
        "algorithm": algorithm,
        "trainer": trainer,
        **handles(trainer, algorithm.needs, optimizer_steps),
        "journal": Journal(events),
        "checkpoints": Checkpoints(folder, keep=2),
        "engines": engines,
    }
    return Job(**(parts | changes))  # type: ignore[arg-type]


async def test_a_step_happens_in_the_order_of_the_data_flow(tmp_path: Path) -> None:
    one = job(tmp_path, steps=2)
    await run(one, progress := Progress())
    assert one.trainer.events == [
        "weights 0",
        *("train policy", "weights 1", "samples 1", "metrics 1"),
        *("train policy", "weights 2", "samples 2", "metrics 2", "flush", "save"),
    ]
    assert (progress.step, progress.version) == (2, 2)


class MemoryLog:
    """Engines and a trainer that record calls about memory, and fail if one comes at a wrong time."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.owner: str = "nobody"

    async def sleep(self) -> None:
        if self.owner != "trainer":
            self.events.append("engines sleep")

    async def wake(self, tag: str) -> None:
        assert self.owner == ("trainer" if tag == "weights" else "engines")
        self.events.append(f"wake {tag}")

    async def reload(self) -> None:
        self.owner = "trainer"

    async def offload(self) -> None:
        assert self.owner == "trainer"
        self.owner = "engines"
        self.events.append("trainer leaves")


async def test_trainer_and_engines_on_the_same_devices_take_turns(tmp_path: Path) -> None:
    one = job(tmp_path, steps=2, checkpoint_interval=1)
    events = one.trainer.events
    memory = MemoryLog(events)
    await run(replace(one, devices=SharedDevices(memory, memory)), Progress())
    handed_over = ["wake weights", "trainer leaves", "wake kv_cache"]
    assert events == [
        *("engines sleep", "weights 0", *handed_over),
        *("engines sleep", "train policy", "weights 1", *handed_over, "samples 1", "metrics 1", "flush"),
        *("engines sleep", "save", "weights 1", *handed_over),
        *("engines sleep", "train policy", "weights 2", *handed_over, "samples 2", "metrics 2", "flush"),
        *("engines sleep", "save"),
    ]


async def test_the_policy_learns(tmp_path: Path) -> None:
    one = job(tmp_path, steps=40)
    await run(one, Progress())
    rewards = [metrics["rollout/reward/mean"] for _, metrics in one.journal.lines]
    assert rewards[0] < 0.7
    assert rewards[-1] > 0.95


async def test_samples_come_from_the_newest_weights(tmp_path: Path) -> None:
    one = job(tmp_path, steps=3)
    await run(one, Progress())
    assert [metrics["rollout/staleness/max"] for _, metrics in one.journal.lines] == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "updates", "staleness"),
    [
        ({}, [0, 2, 4, 6, 7], [0, 1, 0, 1, 0, 1, 0]),
        ({"checkpoint_interval": 3}, [0, 2, 3, 4, 6, 7], [0, 1, 0, 0, 0, 1, 0]),
        ({"eval_interval": 5, "evaluation": FakeEvaluation([])}, [0, 2, 4, 5, 6, 7], [0, 1, 0, 1, 0, 0, 0]),
    ],
    ids=["interval alone", "checkpoints", "evaluations"],
)
async def test_engines_get_weights_every_second_step_and_for_checkpoints_and_evaluations(
    tmp_path: Path, changes: dict, updates: list[int], staleness: list[int]
) -> None:
    one = job(tmp_path, steps=7, weight_interval=2, **changes)
    await run(one, Progress())
    found = [metrics["rollout/staleness/max"] for step, metrics in one.journal.lines if step]
    assert found == staleness
    assert [event for event in one.trainer.events if event.startswith("weights")] == [
        f"weights {version}" for version in updates
    ]


async def test_a_run_resumed_between_two_updates_is_the_uninterrupted_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"weight_interval": 2, "checkpoint_interval": 3}
    whole = job(tmp_path / "whole", steps=6, **settings)
    await run(whole, Progress())
    await run(job(tmp_path / "parts", steps=3, **settings), Progress())
    second = job(tmp_path / "parts", steps=6, **settings)
    driver = read_driver(second.checkpoints.newest())
    await second.trainer.load(trainer_folder(second.checkpoints.newest()))
    await second.source.restore(driver["data"])
    await run(second, Progress(**driver["progress"]))
    assert second.trainer.logit == whole.trainer.logit
    staleness = [
        [metrics["rollout/staleness/max"] for _, metrics in one.journal.lines] for one in (whole, second)
    ]
    assert staleness[0][3:] == staleness[1]


@pytest.mark.parametrize(
    ("needs", "optimizer_steps", "recompute", "passes"),
    [
        (Needs(), 1, True, []),
        (Needs(), 2, True, ["policy log_probs"]),
        (Needs(), 2, False, []),
        (Needs(old_log_probs=False), 2, True, []),
        (Needs(reference=True), 1, True, ["reference log_probs"]),
        (Needs(reference=True), 2, True, ["policy log_probs", "reference log_probs"]),
        (Needs(policy_log_probs=True), 1, True, ["policy log_probs"]),
        (Needs(policy_log_probs=True), 1, False, []),
        (Needs(policy_log_probs=True, teacher=True), 2, True, ["policy log_probs", "teacher log_probs"]),
        (Needs(policy_log_probs=True, current_log_probs=True), 1, False, []),
        (Needs(critic=True), 1, True, ["critic values", "train critic"]),
        (Needs(policy_entropies=True), 1, True, [ENTROPIES]),
        (Needs(policy_entropies=True), 1, False, [ENTROPIES]),
        (Needs(policy_entropies=True, old_log_probs=False), 2, False, [ENTROPIES]),
        (Needs(policy_entropies=True, policy_squared_probs=True), 1, True, [f"{ENTROPIES} {SQUARES}"]),
    ],
)
async def test_only_the_passes_that_are_needed_are_run(
    tmp_path: Path, needs: Needs, optimizer_steps: int, recompute: bool, passes: list[str]
) -> None:
    one = job(tmp_path, 1, optimizer_steps, algorithm=Relative(needs), recompute_old=recompute)
    await run(one, Progress())
    assert one.trainer.events[1 : 1 + len(passes) + 1] == [*passes, "train policy"]
    sequence = one.trainer.trained[0][0]
    assert (sequence.old_log_probs is not None) == ("policy log_probs" in passes and optimizer_steps > 1)
    assert (sequence.reference_log_probs is not None) == ("reference log_probs" in passes)


async def test_stale_samples_are_measured_from_the_current_policy(tmp_path: Path) -> None:
    """Advantages get the trainer's log-probs, and the ratio keeps those of the engines."""
    for may_be_stale, passes in ((False, []), (True, ["policy log_probs"])):
        needs = Needs(policy_log_probs=True, current_log_probs=True)
        one = job(tmp_path, 1, 2, algorithm=Relative(needs), recompute_old=False, may_be_stale=may_be_stale)
        await run(one, Progress())
        assert one.trainer.events[1 : 2 + len(passes)] == [*passes, "train policy"]
        assert all(sequence.old_log_probs is None for sequence in one.trainer.trained[0])


@pytest.mark.parametrize(
    ("optimizer_steps", "recompute", "error"),
    [(2, True, None), (2, False, None), (2, True, 0.5), (2, False, 0.5)],
    ids=["equal", "equal, old log-probs of engines", "unequal", "unequal, old log-probs of engines"],
)
async def test_every_sample_of_several_updates_is_compared(
    tmp_path: Path, optimizer_steps: int, recompute: bool, error: float | None
) -> None:
    trainer = InexactTrainer(error or 0.0)
    one = job(tmp_path, 1, optimizer_steps, trainer=trainer, recompute_old=recompute, true_on_policy=True)
    if error is None:
        await run(one, Progress())
        assert [sample.old_log_probs is not None for sample in trainer.trained[0]] == [recompute] * 16
        return
    with pytest.raises(JobError, match=r"true_on_policy: in step 1 .* differ by up to 0\.5"):
        await run(one, Progress())
    assert not trainer.trained


async def test_samples_of_a_step_that_trains_the_critic_alone_are_compared(tmp_path: Path) -> None:
    parts = {"algorithm": Relative(Needs(critic=True)), "critic_only_steps": 1, "true_on_policy": True}
    equal = InexactTrainer(0.0)
    await run(job(tmp_path, 2, trainer=equal, **parts), Progress())
    assert len(equal.trained) == 1
    with pytest.raises(JobError, match=r"true_on_policy: in step 1 .* differ by up to 0\.5"):
        await run(job(tmp_path, 2, trainer=InexactTrainer(0.5), **parts), Progress())


class InexactTrainer(Trainer):
    """Its log-probs differ from the engines' in the last sample alone, which no first update trains on."""

    def __init__(self, error: float) -> None:
        super().__init__([])
        self.error = error

    async def compute(self, *arguments: Any, **settings: Any) -> dict[Output, list[np.ndarray]]:
        outputs = await super().compute(*arguments, **settings)
        return {name: [*arrays[:-1], arrays[-1] + self.error] for name, arrays in outputs.items()}

    async def train(self, *arguments: Any, **settings: Any) -> list[dict[str, float]]:
        updates = await super().train(*arguments, **settings)
        return [metrics | {f"{DIFFERENCE}_max": 0.0} for metrics in updates]


class Counting(Relative):
    """Counts the steps that it sees."""

    def __init__(self) -> None:
        super().__init__(Needs(state=True))
        self.count = 0

    def observe(self, groups: Sequence[Group]) -> None:
        assert len(groups) == 4
        self.count += 1

    def step_values(self) -> dict[str, float]:
        return {"count": float(self.count)}

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class ValuesTrainer(Trainer):
    """Keeps the values of the optimizer steps that it takes."""

    def __init__(self) -> None:
        super().__init__([])
        self.values: list[float] = []

    async def train(self, role: Role, sequences: Any, steps: Any, **settings: Any) -> list[dict[str, float]]:
        self.values += [step.values["count"] for step in steps]
        return await super().train(role, sequences, steps, **settings)


async def test_what_an_algorithm_remembers_is_in_its_losses_the_metrics_and_checkpoints(
    tmp_path: Path,
) -> None:
    def counting(steps: int) -> Job:
        settings = {"trainer": ValuesTrainer(), "algorithm": Counting(), "checkpoint_interval": 2}
        return job(tmp_path, steps, optimizer_steps=2, **settings)

    one = counting(2)
    await run(one, progress := Progress())
    assert one.trainer.values == [1, 1, 2, 2]
    one.algorithm.observe([None] * 4)  # as in a step that is dropped because the run is asked to stop
    assert progress.driver_state()["algorithm"] == {"count": 2}
    two = counting(4)
    driver = read_driver(two.checkpoints.newest())
    await two.source.restore(driver["data"])
    restore_algorithm(two.algorithm, driver["algorithm"])
    await run(two, Progress(**driver["progress"]))
    assert two.trainer.values == [3, 3, 4, 4]
    assert [metrics["train/count"] for one in (one, two) for _, metrics in one.journal.lines] == [1, 2, 3, 4]


class CopyingAlgorithm(Relative):
    """Keeps a copy of the groups at the time when advantages are computed."""

    def __init__(self, needs: Needs) -> None:
        super().__init__(needs)
        self.groups: list[Group] = []

    def advantages(self, groups: Sequence[Group]) -> list[np.ndarray]:
        self.groups = copy.deepcopy(list(groups))
        return super().advantages(groups)


async def test_samples_carry_what_the_advantages_need(tmp_path: Path) -> None:
    policy = dict.fromkeys(["policy_log_probs", "policy_entropies", "policy_squared_probs"], True)
    algorithm = CopyingAlgorithm(Needs(**policy, reference=True, teacher=True, critic=True))
    one = job(tmp_path, 1, algorithm=algorithm)
    await run(one, Progress())
    for sample in (sample for group in algorithm.groups for sample in group.samples):
        np.testing.assert_array_equal(sample.policy_log_probs, sample.log_probs)
        np.testing.assert_array_equal(sample.reference_log_probs, sample.log_probs)
        np.testing.assert_array_equal(sample.teacher_log_probs, sample.log_probs - 1)
        assert (sample.policy_entropies.tolist(), sample.policy_squared_probs.tolist()) == ([4.0], [5.0])
        assert (sample.values.tolist(), sample.value_after) == ([0.5], 0.75)
    for sequence in one.trainer.trained[0]:
        assert sequence.values.tolist() == [0.5]
        assert sequence.returns.tolist() == [float(sequence.tokens[-1])]


async def test_a_step_is_packed_once_for_each_layout(tmp_path: Path) -> None:
    packed: list[Role] = []

    def counted(role: Role) -> Pack:
        def pack_and_count(sequences: Sequence[TrainSequence]) -> list[TrainStep]:
            packed.append(role)
            return pack()(sequences)

        return pack_and_count

    trainer = Trainer([])
    needs = Needs(policy_log_probs=True, reference=True, critic=True)
    roles: list[Role] = ["policy", "reference", "critic"]
    models = {role: ModelHandle(trainer, role, counted(role), [0]) for role in roles}
    await run(job(tmp_path, 2, algorithm=Relative(needs), trainer=trainer, **models), Progress())
    assert packed == ["critic", "policy"] * 2


async def test_the_critic_can_begin_alone(tmp_path: Path) -> None:
    needs = Needs(critic=True)
    one = job(tmp_path, 3, algorithm=Relative(needs), critic_only_steps=2)
    await run(one, Progress())
    trained = [event for event in one.trainer.events if event.startswith("train ")]
    assert trained == ["train critic"] * 3 + ["train policy"]


async def test_the_reference_follows_every_interval(tmp_path: Path) -> None:
    one = job(tmp_path, 5, algorithm=Relative(Needs(reference=True)), reference_interval=2)
    await run(one, Progress())
    events = [event for event in one.trainer.events if event in ("train policy", "update reference")]
    assert events == ["train policy", "train policy", "update reference"] * 2 + ["train policy"]


async def test_evaluation_before_every_interval_and_at_the_end(tmp_path: Path) -> None:
    one = job(tmp_path, steps=5, eval_interval=2)
    events = one.trainer.events
    await run(job(tmp_path / "other", 5, trainer=one.trainer, journal=one.journal, eval_interval=2,
                  evaluation=FakeEvaluation(events)), Progress())  # fmt: skip
    evaluated = [step for step, metrics in one.journal.lines if "eval/held_out/reward" in metrics]
    assert evaluated == [0, 2, 4, 5]
    assert events.count("eval") == 4


async def test_checkpoints_every_interval_and_at_the_end(tmp_path: Path) -> None:
    one = job(tmp_path, steps=5, checkpoint_interval=2)
    await run(one, Progress())
    assert names(tmp_path) == ["step-4", "step-5"]


async def test_the_checkpoint_of_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    """The one before training does not count, and a tie goes to the earlier step."""
    evaluation = FakeEvaluation([], 0.9, 0.2, 0.7, 0.7, 0.1, 0.3)
    changes = {"eval_interval": 1, "checkpoint_interval": 2, "best_metric": "eval/held_out/reward"}
    one = job(tmp_path, 5, evaluation=evaluation, **changes)
    await run(one, progress := Progress())
    assert progress.best == {"metric": "eval/held_out/reward", "step": 2, "value": 0.7}
    assert names(tmp_path) == ["step-2", "step-4", "step-5"]
    assert read_driver(tmp_path / "step-5")["progress"]["best"] == progress.best


@pytest.mark.parametrize(
    ("metrics", "best"),
    [
        ({"eval/easy/reward": 0.6}, 4),
        ({"eval/easy/reward": 0.5}, 2),
        ({"eval/easy/failed": 8.0}, 2),
        ({"eval/hard/reward": 0.6}, 2),
    ],
    ids=["better", "a tie", "every sample failed", "another dataset"],
)
def test_the_best_evaluation_is_remembered(metrics: dict[str, float], best: int) -> None:
    progress = Progress(step=4, best={"metric": "eval/easy/reward", "step": 2, "value": 0.5})
    assert progress.remember_best("eval/easy/reward", metrics) == (best == 4)
    assert progress.best is not None and progress.best["step"] == best


def test_a_new_metric_begins_with_no_best_evaluation_and_must_exist() -> None:
    progress = Progress(step=4, best={"metric": "eval/easy/reward", "step": 2, "value": 0.5})
    metrics = {"eval/easy/reward": 0.7, "eval/easy/pass@1": 0.1}
    assert progress.remember_best("eval/easy/pass@1", metrics)
    with pytest.raises(JobError, match=r"no metric 'eval/easy/pass@2'; they have eval/easy/reward, eval/"):
        progress.remember_best("eval/easy/pass@2", metrics)


async def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", steps=6)
    await run(whole, Progress())

    await run(job(tmp_path / "parts", steps=4, checkpoint_interval=2), Progress())
    second = job(tmp_path / "parts", steps=6)
    checkpoint = second.checkpoints.newest()
    driver = read_driver(checkpoint)
    await second.trainer.load(trainer_folder(checkpoint))
    await second.source.restore(driver["data"])
    await run(second, Progress(**driver["progress"]))

    def curve(lines: list) -> list:
        return [
            (step, {k: v for k, v in metrics.items() if not k.startswith("perf/")}) for step, metrics in lines
        ]

    assert curve(second.journal.lines) == curve(whole.journal.lines)[4:]
    assert second.trainer.logit == whole.trainer.logit


async def test_a_finished_run_does_nothing(tmp_path: Path) -> None:
    one = job(tmp_path, steps=2)
    await run(one, Progress(step=2))
    assert one.trainer.events == []


async def test_demonstrations_need_no_engine(tmp_path: Path) -> None:
    prompts = Prompts()
    groups = Prefetcher(
        lambda: [
            Group(p, [demonstration(p, 0, p.tokens, np.ones(len(p.tokens), np.float32), "text")])
            for p in prompts.take(4)
        ],
        lambda: {"place": prompts.place},
        lambda state: None,
    )
    one = job(
        tmp_path,
        steps=2,
        source=DemonstrationSource(groups),
        algorithm=Relative(Needs(rollout=False, old_log_probs=False)),
        engines=None,
    )
    await run(one, Progress())
    assert [len(sequences) for sequences in one.trainer.trained] == [4, 4]
    assert one.trainer.events[0] == "train policy"
    assert "rollout/reward/mean" not in one.journal.lines[0][1]


async def test_the_learning_rate_is_the_last_and_the_rest_a_mean(tmp_path: Path) -> None:
    one = job(tmp_path, steps=1, optimizer_steps=4)
    await run(one, Progress())
    assert one.journal.lines[0][1]["train/lr"] == 0.25


async def test_overhead_is_what_no_part_of_the_step_claims(tmp_path: Path) -> None:
    one = job(tmp_path, steps=1)
    await run(one, Progress())
    metrics = one.journal.lines[0][1]
    assert 0 <= metrics["perf/overhead_time"] <= metrics["perf/step_time"]
    assert metrics["perf/weight_sync_bytes"] == 8
