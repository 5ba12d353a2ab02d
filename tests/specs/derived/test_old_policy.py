"""Whose log-probs the ratio is taken to, and what is said of stale samples."""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.old_policy import old_log_probs_of
from rlrun.specs.needs import Needs

BASE = Path(__file__).parents[1] / "base.toml"
ASYNC = ("rollout.mode=async", "cluster.placement=disaggregated")
PARTIAL = ("rollout.partial=true",)
TIS = ("algorithm.correction.type=tis",)


@pytest.mark.parametrize(
    ("overrides", "needs", "source"),
    [
        ((), Needs(), "trainer"),
        (ASYNC, Needs(), "rollout"),
        (PARTIAL, Needs(), "rollout"),
        (ASYNC, Needs(trainer_log_probs=True), "trainer"),
        ((), Needs(engine_ratio=True), "rollout"),
        ((), Needs(engine_ratio=True, trainer_log_probs=True), "trainer"),
        ((*ASYNC, "trainer.old_log_probs=trainer"), Needs(engine_ratio=True), "trainer"),
        (("trainer.old_log_probs=rollout",), Needs(), "rollout"),
    ],
)
def test_stale_samples_are_compared_with_the_engine(
    overrides: tuple[str, ...], needs: Needs, source: str
) -> None:
    assert old_log_probs_of(load_checked_spec([BASE], overrides).spec, needs) == source


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (ASYNC, False),
        ((*ASYNC, "trainer.old_log_probs=trainer"), True),
        ((*ASYNC, *TIS, "trainer.old_log_probs=trainer"), False),
        (("trainer.old_log_probs=trainer",), False),
    ],
)
def test_a_ratio_that_ignores_staleness_is_warned_of(overrides: tuple[str, ...], warned: bool) -> None:
    found = [each.key for each in load_checked_spec([BASE], overrides).warnings()]
    assert found == (["trainer.old_log_probs"] if warned else [])
