"""The real loop, with engines, rewards, a trainer and an update that each take too long in turn."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator import BASE, Rate, SleepingGrader, run_real
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.planning.simulated_engines import SimulationSettings
from rlrun.runner.planning.simulation import simulate, spread_lengths
from rlrun.runner.records.diagnosis import find_bottleneck

SPEC = Path(__file__).parents[2] / "specs" / "base.toml"
STEPS = 3
WORLD = replace(
    BASE,
    prompts=4,
    oversample=4,
    samples_per_prompt=2,
    token_seconds=Rate(0.001, 0.0),
    lengths=spread_lengths(20, 0.3, 60),
    train_seconds=0.02,
    sync_seconds=0.01,
)


@pytest.mark.parametrize(
    ("world", "reward_seconds", "cause"),
    [
        pytest.param(replace(WORLD, token_seconds=Rate(0.04, 0.0)), 0.0, "generation", id="generation"),
        pytest.param(replace(WORLD, train_seconds=0.5), 0.0, "training", id="trainer"),
        pytest.param(replace(WORLD, sync_seconds=0.5), 0.0, "weights", id="sync"),
        pytest.param(WORLD, 0.15, "rewards", id="rewards"),
        pytest.param(
            replace(WORLD, max_staleness=1, token_seconds=Rate(0.04, 0.0)), 0.0, "generation",
            id="generation while the trainer works",
        ),
        pytest.param(
            replace(WORLD, max_staleness=1, train_seconds=0.5), 0.0, "training",
            id="trainer while engines generate",
        ),
        pytest.param(replace(WORLD, max_staleness=1), 0.15, "rewards", id="rewards while the trainer works"),
    ],
)  # fmt: skip
async def test_a_planted_bottleneck_is_named(
    world: SimulationSettings, reward_seconds: float, cause: str
) -> None:
    metrics = await run_real(world, STEPS, SleepingGrader(reward_seconds))
    bottleneck = find_bottleneck(metrics, load_checked_spec([SPEC], []).spec)
    assert bottleneck is not None
    assert bottleneck.cause == cause, bottleneck.sentence
    if cause == "generation":
        # The sentence and `rlrun plan --simulate` agree; the real loop also packs and counts.
        assert bottleneck.share == pytest.approx(simulate(world, STEPS).trainer_waits, abs=0.25)
