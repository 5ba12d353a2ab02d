"""The simulator: what can be worked out by hand, and what must hold of any world."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.runner.planning.simulated_engines import SimulationSettings
from rlrun.runner.planning.simulation import simulate, spread_lengths


def same(length: int) -> SimulationSettings:
    """Everything takes its time and nothing varies: 2 engines of 4 slots, 4 groups of 2."""
    return SimulationSettings(
        engines=2,
        slots=4,
        token_seconds=lambda running: 0.01,
        prompt_seconds=0.0,
        prompts=4,
        samples_per_prompt=2,
        responses_per_prompt=2,
        oversample=4,
        train_seconds=1.0,
        sync_seconds=0.5,
        lengths=lambda group, number: length,
    )


def test_a_step_is_generation_training_and_sync() -> None:
    found = simulate(same(100), steps=3)
    assert found.step_seconds == pytest.approx(1.0 + 1.0 + 0.5)
    assert found.waiting_seconds == pytest.approx(1.0)
    assert found.engines_idle == pytest.approx(1.5 / 2.5)
    assert found.trainer_waits == pytest.approx(1.0 / 2.5)
    assert (found.staleness, found.tokens) == (0.0, 3 * 8 * 100)


def test_samples_without_a_free_slot_wait() -> None:
    assert simulate(replace(same(100), slots=2), 1).waiting_seconds == pytest.approx(2.0)
    assert simulate(replace(same(100), slots=3), 1).waiting_seconds == pytest.approx(2.0)


def test_the_longest_sample_ends_a_step() -> None:
    world = replace(same(0), lengths=lambda group, number: 300 if (group, number) == (1, 1) else 100)
    assert simulate(world, 1).waiting_seconds == pytest.approx(3.0)


def test_groups_beyond_those_needed_cut_the_tail() -> None:
    world = replace(same(0), oversample=5, slots=8)
    world = replace(world, lengths=lambda group, number: 1000 if group % 5 == 0 else 100)
    assert simulate(world, 2).waiting_seconds == pytest.approx(1.0)


def test_a_full_engine_is_slower() -> None:
    world = replace(same(100), token_seconds=lambda running: 0.01 * running)
    assert simulate(world, 1).waiting_seconds == pytest.approx(4.0)


def test_prompts_stop_decoding() -> None:
    assert simulate(replace(same(100), prompt_seconds=0.25), 1).waiting_seconds == pytest.approx(1.5)


def test_asynchronously_the_slower_of_the_two_sets_the_pace() -> None:
    """Half a second to generate a batch and 1.5 s to train on it: only the first is waited for."""
    world = replace(same(50), max_staleness=1, slots=8)
    found = simulate(world, 10)
    assert found.step_seconds == pytest.approx((0.5 + 10 * 1.5) / 10)
    assert found.trainer_waits == pytest.approx(0.5 / 15.5)
    assert found.staleness == pytest.approx(0.9)


def test_asynchronously_a_slow_group_is_not_waited_for() -> None:
    lengths = lambda group, number: 400 if group % 4 == 0 else 50  # noqa: E731
    together = simulate(replace(same(0), lengths=lengths, slots=16), 6)
    apart = simulate(replace(same(0), lengths=lengths, slots=16, max_staleness=2), 6)
    assert together.waiting_seconds == pytest.approx(4.0)
    assert apart.waiting_seconds < 2.0


@settings(max_examples=60, deadline=None)
@given(
    engines=st.integers(1, 5),
    slots=st.integers(1, 9),
    prompts=st.integers(1, 8),
    samples=st.integers(1, 4),
    more=st.integers(0, 4),
    staleness=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_any_world(  # noqa: PLR0917
    engines: int, slots: int, prompts: int, samples: int, more: int, staleness: int, seed: int
) -> None:
    world = SimulationSettings(
        engines=engines,
        slots=slots,
        token_seconds=lambda running: 0.01 + 0.001 * running,
        prompt_seconds=0.02,
        prompts=prompts,
        samples_per_prompt=samples,
        responses_per_prompt=samples,
        oversample=prompts + more,
        train_seconds=0.3,
        sync_seconds=0.1,
        lengths=spread_lengths(50, 1.0, 200, seed),
        max_staleness=staleness,
    )
    found = simulate(world, 4)
    assert found.staleness <= staleness
    assert 0.4 <= found.step_seconds <= found.waiting_seconds + 0.4 + 1e-9
    assert -1e-9 <= found.engines_idle < 1
    assert 0 <= found.trainer_waits < 1
    assert found.tokens > 0


def test_lengths_have_the_mean_asked_for() -> None:
    lengths = spread_lengths(500, 0.5, 100_000)
    drawn = [lengths(group, number) for group in range(1000) for number in range(4)]
    assert sum(drawn) / len(drawn) == pytest.approx(500, rel=0.03)
    assert max(spread_lengths(500, 2.0, 800)(group, 0) for group in range(500)) == 800
    assert lengths(3, 1) == spread_lengths(500, 0.5, 100_000)(3, 1)
