"""Every shipped spec, and the specs that tests start from, validate and plan."""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.plan import make_plan
from rlrun.specs.paths import RECIPES

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "spec",
    [*sorted(RECIPES.glob("*.toml")), HERE / "base.toml", HERE / "full.toml"],
    ids=lambda path: path.stem,
)
def test_validates_and_plans(spec: Path) -> None:
    loaded = load_checked_spec([spec])
    plan = make_plan(loaded.spec, rows=10_000, cores=2)
    assert plan.optimizer_steps
    assert plan.ranks
