from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.generation import Sampling
from rlrun.plugins.types import Group, Status
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.rollouts.evaluation import EvalSet, Evaluator, eval_set, evaluation_metrics
from rlrun.runner.rollouts.settings import RolloutSettings
from rlrun.specs.sections.rollout import RolloutSpec
from tests.resolved_specs import resolved, resolved_rollout
from tests.runner.loop_fakes import Engines, Grader, policy, prompt, sample
from tests.runner.typing_engines import TypingEngines

ROLLOUT = resolved_rollout(
    samples_per_prompt=8, temperature=1.0, top_p=0.9, max_response_tokens=64, stop=("#",)
)


@pytest.mark.parametrize(
    ("dataset", "section", "expected"),
    [
        ({}, {}, (1.0, 0.9, 64, 8)),
        ({}, {"temperature": 0.0, "samples_per_prompt": 1}, (0.0, 0.9, 64, 1)),
        (
            {"temperature": 0.6, "max_response_tokens": 32},
            {"temperature": 0.0, "top_p": 1.0},
            (0.6, 1.0, 32, 8),
        ),
        ({"samples_per_prompt": 4}, {"samples_per_prompt": 2}, (1.0, 0.9, 64, 4)),
    ],
)
def test_settings_fall_back_to_the_section_then_to_the_rollout(
    dataset: dict, section: dict, expected: tuple
) -> None:
    one = set_of(ROLLOUT, 0, section, **dataset)
    sampling = one.settings.sampling
    found = (sampling.temperature, sampling.top_p, sampling.max_new_tokens, one.settings.samples)
    assert found == expected
    assert sampling.stop == ("#",)


@pytest.mark.parametrize(
    ("dataset", "section", "expected"),
    [
        ({}, {}, (-1, 0, ("#",), ())),
        ({}, {"top_k": 5, "stop": [], "min_response_tokens": 3}, (5, 3, (), ())),
        (
            {"top_k": 2, "stop": ["x"], "stop_token_ids": [9], "min_response_tokens": 1},
            {"top_k": 5, "stop": [], "min_response_tokens": 3},
            (2, 1, ("x",), (9,)),
        ),
    ],
)
def test_candidates_ends_and_minimum_fall_back_in_the_same_way(
    dataset: dict, section: dict, expected: tuple
) -> None:
    sampling = set_of(ROLLOUT, 0, section, **dataset).settings.sampling
    assert (sampling.top_k, sampling.min_new_tokens, sampling.stop, sampling.stop_token_ids) == expected


def set_of(rollout: RolloutSpec, count: int, section: dict, **dataset: Any) -> EvalSet:
    datasets = [{"name": "held_out", "type": "jsonl"} | dataset]
    evaluation = section | {"datasets": datasets}
    spec = resolved({"model": {"path": "m"}, "data": {}, "rollout": rollout, "eval": evaluation})
    return eval_set(spec.eval.datasets[0], spec.rollout, [prompt(index) for index in range(count)])


def held_out(count: int = 3, samples: int = 2) -> EvalSet:
    return set_of(ROLLOUT, count, {}, samples_per_prompt=samples)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_every_prompt_is_answered_and_graded(deterministic: bool) -> None:
    engines = Engines()
    engines.probability = 1.0
    metrics = (await Evaluator([held_out()], policy(engines, deterministic=deterministic), 10).run()).metrics
    assert metrics["eval/held_out/reward"] == 1.0
    assert metrics["eval/held_out/pass@2"] == 1.0
    assert metrics["eval/held_out/truncated_ratio"] == 0.0
    assert metrics["eval/held_out/response_len/mean"] == 1.0
    assert len(engines.requests) == 3


async def test_evaluations_repeat_and_share_no_seed_with_training() -> None:
    engines = Engines()
    evaluator = Evaluator([held_out()], policy(engines), 10)
    assert (await evaluator.run()).metrics == (await evaluator.run()).metrics
    first, again = engines.requests[:3], engines.requests[3:]
    assert [one.seeds for one in first] == [one.seeds for one in again]
    assert all(one.id.startswith("eval-held_out-") for one in first)


async def test_a_dataset_with_its_own_rewards_and_rollout_is_answered_and_scored_with_them() -> None:
    engines, own = Engines(), Grader()
    engines.probability = 1.0
    own.fails = {0, 1, 2}
    answers = policy(engines)
    one = replace(held_out(), name="own", policy=replace(answers, grader=own))
    metrics = (await Evaluator([held_out(), one], answers, 10).run()).metrics
    assert (metrics["eval/held_out/failed"], metrics["eval/own/failed"]) == (0, 6)


async def test_an_engine_that_does_not_answer_is_named() -> None:
    engines = Engines()
    engines.never = {1}
    with pytest.raises(JobError, match="evaluation on 'held_out'"):
        await Evaluator([held_out()], policy(engines), 0.01).run()


async def test_a_sample_past_its_time_is_left_out_and_ends_nothing() -> None:
    engines = TypingEngines(lambda index, number: 10**9 if (index, number) == (1, 1) else 3)
    rollout = ROLLOUT.model_copy(update={"request_timeout": 0.3, "max_response_tokens": 10**9})
    one = set_of(rollout, 3, {}, samples_per_prompt=2)
    metrics = (await Evaluator([one], policy(engines), 10).run()).metrics  # type: ignore[arg-type]
    assert (metrics["eval/held_out/failed"], metrics["eval/held_out/late"]) == (1, 1)
    assert all(np.isfinite(value) for value in metrics.values()), metrics


async def test_a_prompt_that_engines_refuse_costs_the_evaluation_its_samples_alone() -> None:
    engines = Engines()
    engines.probability, engines.broken = 1.0, {1}
    metrics = (await Evaluator([held_out()], policy(engines), 10).run()).metrics
    assert metrics["eval/held_out/reward"] == 1.0
    assert (metrics["eval/held_out/failed"], metrics["eval/held_out/late"]) == (2, 0)


async def test_an_evaluation_without_any_answer_says_why() -> None:
    engines = Engines()
    engines.broken = {0, 1, 2}
    with pytest.raises(EngineError, match="500"):
        await Evaluator([held_out()], policy(engines), 10).run()


async def test_no_more_samples_are_asked_for_than_there_is_room_for() -> None:
    engines = TypingEngines(lambda index, number: 3)
    await Evaluator([held_out(9)], policy(engines), 10, concurrency=5).run()  # type: ignore[arg-type]
    assert engines.most == 4  # two groups of two
    assert len(engines.requests) == 9


async def test_a_failed_sample_is_counted_and_left_out() -> None:
    grader = Grader()
    grader.fails = {0}
    engines = Engines()
    engines.probability = 1.0
    metrics = (await Evaluator([held_out(2)], policy(engines, grader), 10).run()).metrics
    assert metrics["eval/held_out/reward"] == metrics["eval/held_out/pass@1"] == 1.0
    assert metrics["eval/held_out/failed"] == 2


@pytest.mark.parametrize("status", [Status.FAILED, Status.ABORTED])
def test_what_never_finished_says_nothing_of_the_policy(status: Status) -> None:
    unscored = sample(0, 1, reward=float("nan"), length=9, status=status)
    metrics = evaluation_metrics([Group(prompt(0), [sample(reward=1.0, length=3), unscored])], 1.0)
    assert metrics["reward"] == metrics["pass@1"] == 1.0
    assert "pass@2" not in metrics
    assert metrics["response_len/max"] == 3
    assert (metrics["failed"], metrics["late"]) == (1, int(status is Status.ABORTED))


def test_an_evaluation_without_rewards_has_no_pass_rate() -> None:
    answers = [replace(sample(0, k, reward=float("nan")), text="\\boxed{3}") for k in range(2)]
    metrics = evaluation_metrics([Group(prompt(0), answers)], 1.0)
    assert metrics["failed"] == 0
    assert not [name for name in metrics if name.startswith(("reward", "pass", "majority"))]


def test_an_evaluation_in_which_nothing_finished_has_no_reward() -> None:
    late = sample(0, 0, reward=float("nan"), status=Status.ABORTED)
    assert evaluation_metrics([Group(prompt(0), [late])], 1.0) == {"failed": 1, "late": 1}


@pytest.mark.parametrize(
    ("used", "given", "limits"),
    [
        (0, None, (8, 16)),
        (40, None, (8, 10)),
        (45, None, (5, 5)),
        (0, Sampling(4, min_new_tokens=8), (4, 4)),
        (47, Sampling(4, min_new_tokens=8), (3, 3)),
        (50, None, None),
    ],
)
def test_no_more_tokens_are_required_than_allowed(
    used: int, given: Sampling | None, limits: tuple[int, int] | None
) -> None:
    """Later turns share the remaining tokens, and evaluations have their own limit."""
    settings = RolloutSettings("eval", 1, Sampling(16, min_new_tokens=8), 50, 16, 1.0)
    sampling = settings.sampling_for(np.zeros(used, np.int32), given)
    assert (sampling and (sampling.min_new_tokens, sampling.max_new_tokens)) == limits


@pytest.mark.parametrize(
    ("used", "given", "limit"),
    [(0, None, 6), (40, None, 6), (45, None, 5), (0, Sampling(4), 4), (0, Sampling(9), 6), (50, None, None)],
)
def test_a_turn_has_a_limit_of_its_own(used: int, given: Sampling | None, limit: int | None) -> None:
    settings = RolloutSettings("eval", 1, Sampling(16), 50, 6, 1.0)
    sampling = settings.sampling_for(np.zeros(used, np.int32), given)
    assert (sampling and sampling.max_new_tokens) == limit


def test_a_long_evaluation_has_more_time_and_the_same_limit_per_turn() -> None:
    rollout = ROLLOUT.model_copy(update={"max_turn_tokens": 32})
    settings = set_of(rollout, 0, {}, max_response_tokens=10_000).settings
    assert (settings.timeout, settings.max_turn_tokens) == (2000, 32)


def test_the_threshold_decides_what_passes() -> None:
    group = Group(prompt(0), [sample(reward=0.5), sample(0, 1, reward=0.2, status=Status.TRUNCATED)])
    assert evaluation_metrics([group], 0.4)["pass@1"] == 0.5
    assert evaluation_metrics([group], 1.0)["pass@1"] == 0.0


def test_an_evaluation_has_intervals_and_the_majority_of_its_answers() -> None:
    answers = [
        [("\\boxed{3}", 1.0), ("\\boxed{ 3 }", 1.0), ("\\boxed{4}", 0.0)],
        [("\\boxed{3}", 1.0), ("\\boxed{4}", 0.0), ("\\boxed{4}", 0.0)],
        [("none", 0.0), ("none", 0.0), ("\\boxed{5}", 1.0)],
    ]
    groups = [
        Group(
            prompt(index),
            [
                replace(sample(index, number, reward=reward), text=text)
                for number, (text, reward) in enumerate(rows)
            ],
        )
        for index, rows in enumerate(answers)
    ]
    metrics = evaluation_metrics(groups, 1.0)
    assert metrics["reward"] == pytest.approx(4 / 9)
    assert metrics["majority@3"] == pytest.approx(2 / 3)
    for name in ("reward", "pass@1", "pass@2", "majority@3"):
        assert metrics[f"{name}/low"] < metrics[name] < metrics[f"{name}/high"]


def test_an_evaluation_on_one_prompt_has_no_interval() -> None:
    metrics = evaluation_metrics([Group(prompt(0), [sample(reward=1.0)])], 1.0)
    assert not [name for name in metrics if name.endswith(("/low", "/high")) or "majority" in name]


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_resumed_evaluation_generates_what_is_missing_and_ends_with_the_same_samples(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun.runner.rollouts.evaluation.BLOCK_SAMPLES", 4)  # two prompts
    whole, engines, kept = Engines(), Engines(), Kept()
    at_once = await Evaluator(
        [held_out(6)], policy(whole, deterministic=deterministic), 10, 4, keep=kept.add
    ).run()
    assert sorted(group.prompt.index for group in kept.groups["held_out"]) == list(range(6))

    finished = [group for group in at_once.groups["held_out"] if group.prompt.index in (0, 1, 4)]
    again, shown = Kept(), []
    resumed = await Evaluator(
        [held_out(6)],
        policy(engines, deterministic=deterministic),
        10,
        4,
        show=lambda activity, done, total: shown.append((done, total)),
        keep=again.add,
        earlier={"held_out": finished},
    ).run()
    asked = sorted({int(request.tokens[0]) for request in engines.requests})
    assert asked == [2, 3, 4, 5] if deterministic else [2, 3, 5]  # a block is generated as a whole
    assert sorted(group.prompt.index for group in again.groups["held_out"]) == [2, 3, 5]
    assert shown[0] == (3, 6) and shown[-1] == (6, 6)
    assert resumed.metrics == at_once.metrics
    assert [group.prompt.index for group in resumed.groups["held_out"]] == list(range(6))


async def test_a_group_with_a_failed_sample_is_not_kept_so_that_a_resume_tries_it_again() -> None:
    engines, kept = Engines(), Kept()
    engines.broken = {1}
    await Evaluator([held_out()], policy(engines), 10, keep=kept.add).run()
    assert sorted(group.prompt.index for group in kept.groups["held_out"]) == [0, 2]


async def test_a_row_that_changed_is_answered_again() -> None:
    engines = Engines()
    other = prompt(1)
    changed = Group(replace(other, row=replace(other.row, id="another row")), [sample(1, 0), sample(1, 1)])
    await Evaluator([held_out()], policy(engines), 10, earlier={"held_out": [changed]}).run()
    assert sorted(int(request.tokens[0]) for request in engines.requests) == [0, 1, 2]


class Kept:
    """The groups that an evaluation kept."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Group]] = {}

    def add(self, dataset: str, groups: Sequence[Group]) -> None:
        self.groups.setdefault(dataset, []).extend(groups)
