"""Engines that go on generating with old weights are noticed by their log-probs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import TrainSequence, TrainStep
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.job.sync_probe import MAX_TOKENS, SyncProbe, check_pass, check_update

NOISE = np.random.default_rng(0).normal(size=(20, MAX_TOKENS)).astype(np.float32)
MOVE = np.random.default_rng(1).normal(size=MAX_TOKENS).astype(np.float32)


def sequence(prompt: int, response: int) -> TrainSequence:
    ones, zeros = np.ones(response, np.float32), np.zeros(response, np.float32)
    return TrainSequence(np.arange(prompt + response, dtype=np.int32), prompt, ones, zeros, zeros, "0-0")


class Policy:
    """The trainer's model, whose log-probs move by `speed` with each version."""

    def __init__(self, speed: float, ranks: int = 2) -> None:
        self.data_ranks = range(ranks)
        self.version, self.speed = 0, speed
        self.scored: list[tuple[int, list[TrainStep]]] = []

    async def log_probs(self, sequences: list[TrainSequence], steps: list[TrainStep]) -> list[np.ndarray]:
        self.scored.append((len(sequences), steps))
        return [(-3 + self.version * self.speed * MOVE).astype(np.float32)] * len(sequences)


class Engines:
    """Two engines: the second generates with the weights of `stuck_at` from that version on."""

    def __init__(self, policy: Policy, noise: float, stuck_at: int | None, temperature: float) -> None:
        self.policy, self.noise, self.stuck_at, self.temperature = policy, noise, stuck_at, temperature
        self.asked: list[np.ndarray] = []

    async def score(self, tokens: np.ndarray, images: tuple[object, ...] = ()) -> dict[str, np.ndarray]:
        self.asked.append(tokens)
        version = self.policy.version
        stuck = version if self.stuck_at is None else min(version, self.stuck_at)
        return {"engine 0": self._log_probs(version, 0), "engine 1": self._log_probs(stuck, 1)}

    def _log_probs(self, version: int, number: int) -> np.ndarray:
        moved = -2 + self.temperature * version * self.policy.speed * MOVE
        noise = self.noise * NOISE[2 * (self.policy.version % 10) + number]
        return np.concatenate([np.zeros(MAX_TOKENS - 1), moved + noise]).astype(np.float32)


@pytest.mark.parametrize(
    ("precision", "speed", "noise", "stuck_at", "temperature", "found_at"),
    [
        pytest.param("float32", 0.01, 1e-6, None, 1.0, None, id="engines follow"),
        pytest.param("float32", 0.01, 1e-6, None, 0.5, None, id="at another temperature"),
        pytest.param("float32", 0.01, 1e-6, 1, 1.0, 2, id="the first weights are used forever"),
        pytest.param("float32", 0.0001, 1e-6, 1, 1.0, 12, id="found once the moves are no longer small"),
        pytest.param("float32", 0.0, 1e-6, 1, 1.0, None, id="nothing moves"),
        pytest.param(
            "bfloat16", 0.01, 0.03, None, 1.0, None, id="engines follow, with the noise of bfloat16"
        ),
        pytest.param("bfloat16", 0.01, 0.03, 1, 1.0, 7, id="the noise does not hide old weights"),
    ],
)
async def test_engines_that_do_not_move_are_found(
    *,
    precision: str,
    speed: float,
    noise: float,
    stuck_at: int | None,
    temperature: float,
    found_at: int | None,
) -> None:
    policy = Policy(speed)
    engines = Engines(policy, noise, stuck_at, temperature)
    probe = SyncProbe(policy, engines.score, precision=precision, temperature=temperature)  # type: ignore[arg-type]
    error, found = None, None
    await probe.score_with_trainer()
    await probe.check(0)  # before the first batch there is nothing to score
    assert not engines.asked
    probe.choose([sequence(3, 5), sequence(MAX_TOKENS, MAX_TOKENS)])
    for version in range(1, 21):
        policy.version = version
        await probe.score_with_trainer()
        try:
            await probe.check(version)
        except JobError as raised:
            error, found = str(raised), version
            break
    assert found == found_at
    if error is not None:
        assert error.startswith(f"engine 1 confirmed weights {found}, and does not generate with them")
        assert "since weights 1" in error


async def test_a_long_sequence_is_shortened_and_every_data_rank_scores_a_copy() -> None:
    policy = Policy(0.1, ranks=3)
    probe = SyncProbe(policy, Engines(policy, 0, None, 1).score, precision="float32")  # type: ignore[arg-type]
    probe.choose([sequence(1000, 500)])
    await probe.score_with_trainer()
    [(count, [step])] = policy.scored
    assert (count, step.micro_batches) == (3, (((0,),), ((1,),), ((2,),)))
    assert probe._sequence is not None
    assert probe._sequence.tokens.tolist() == [*range(1000 - MAX_TOKENS, 1000 + MAX_TOKENS)]
    assert probe._sequence.prompt_length == MAX_TOKENS


DIFFERENCE = "train/train_rollout_logprob_abs_diff_max"


@pytest.mark.parametrize("updates", [[{DIFFERENCE: 0.0}], [{DIFFERENCE: 0.0}, {DIFFERENCE: 0.1}]])
def test_equal_log_probs_before_the_first_update_are_enough(updates: list[dict[str, float]]) -> None:
    check_update(updates, step=3)


def test_a_missing_metric_does_not_count_as_equal() -> None:
    with pytest.raises(KeyError):
        check_update([{}], step=3)


@pytest.mark.parametrize("difference", [1e-9, float("nan")])
def test_any_other_difference_ends_a_run_that_asked_for_none(difference: float) -> None:
    with pytest.raises(
        JobError, match=r"true_on_policy: in step 3 the log-probs .* differ by up to (1e-09|nan)"
    ):
        check_update([{DIFFERENCE: difference}], step=3)


UNTRAINED, OLDER = {"loss_mask": np.array([1, 0], np.float32)}, {"current": np.array([1, 0], np.float32)}


@pytest.mark.parametrize(
    ("second", "changes", "is_equal"),
    [(0.0, {}, True), (0.25, {}, False), (np.nan, {}, False), (0.25, UNTRAINED, True), (0.25, OLDER, True)],
    ids=["equal", "the last sample", "not a number", "a token that is not trained", "an older token"],
)
def test_a_pass_compares_every_sample(second: float, changes: dict[str, Any], is_equal: bool) -> None:
    samples = [sequence(3, 2), replace(sequence(3, 2), **changes)]
    ours = [one.rollout_log_probs.copy() for one in samples]
    ours[1][1] += second
    if is_equal:
        check_pass(3, samples, ours)
        return
    with pytest.raises(JobError, match=r"in step 3 the log-probs .* differ by up to (0\.25|nan)"):
        check_pass(3, samples, ours)
