"""The spec of a job that follows one prompt."""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.debugging.prompt_trace import with_one_prompt
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.derived.batch_equation import BatchNumbers
from tests.resolved_specs import resolved

BASE = Path(__file__).parents[3] / "specs" / "base.toml"
SFT = ('algorithm.type="sft"', "trainer.global_batch_size=32", 'data.response_key="label"', "rewards=[]")


@pytest.mark.parametrize(
    ("overrides", "batch"),
    [
        pytest.param((), BatchNumbers(1, 8, 8, 1), id="GRPO"),
        pytest.param(("trainer.global_batch_size=64",), BatchNumbers(1, 8, 8, 1), id="optimizer steps"),
        pytest.param(
            ("trainer.parallel.fsdp=4", "rollout.samples_per_prompt=2"), BatchNumbers(2, 2, 4, 1),
            id="more data ranks than samples",
        ),
        pytest.param(
            ('rollout.mode="async"', 'cluster.placement="disaggregated"'), BatchNumbers(1, 8, 8, 1),
            id="async",
        ),
        pytest.param(
            ("rollout.partial=true", "rollout.oversample=64"), BatchNumbers(1, 8, 8, 1), id="partial",
        ),
        pytest.param(SFT, BatchNumbers(1, 1, 1, 1), id="SFT"),
    ],
)  # fmt: skip
def test_the_batch_of_one_prompt(overrides: tuple[str, ...], batch: BatchNumbers) -> None:
    spec = resolved(with_one_prompt(load_checked_spec([BASE], overrides).spec))
    assert make_plan(spec, cores=8).batch == batch
    assert (spec.rollout.mode, spec.rollout.partial, spec.trainer.steps) == ("sync", False, 1)
    assert not spec.eval.datasets and not spec.filters
