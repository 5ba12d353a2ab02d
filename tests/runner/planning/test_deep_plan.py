"""What a dry run is asked for, and why one cannot be done; test_memory_of_ranks looks at its figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.models.config_json import architecture, read_architecture, with_vision_tower
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.deep_plan import make_dry_run, trace_rank
from rlrun.runner.planning.hardware import local_cpu
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.step_time import PlannedJob, Workload
from tests.data.published_models import QWEN3_VL_8B
from tests.resolved_specs import resolved
from tests.runner.planning.test_sizing import planned_job
from tests.tiny_models import make_tiny_model


def tokens(micro_batch: tuple[tuple[int, int], ...]) -> list[int]:
    return [prompt + response for prompt, response in micro_batch]


def test_samples_of_mean_length_fill_micro_batches() -> None:
    found = make_dry_run(planned_job(trainer={"max_tokens_per_rank": 10_000}))
    assert [tokens(each) for each in found.micro_batches] == [[2304, 2304, 2304, 2304, 784]] * 2
    assert found.micro_batches[0][0] == (256, 2048)


def test_a_sample_longer_than_the_budget_is_alone() -> None:
    found = make_dry_run(planned_job(trainer={"max_tokens_per_rank": 4096}))
    assert [tokens(each) for each in found.micro_batches] == [[9216]] * 2


@pytest.mark.parametrize(
    ("parallel", "count"),
    [
        ({"fsdp": 8}, 2),
        ({"fsdp": 2, "pipeline": 4}, 8),
        ({"fsdp": 2, "pipeline": 4, "pipeline_schedule": "Interleaved1F1B"}, 16),
        ({"fsdp": 2, "pipeline": 4, "pipeline_schedule": "GPipe"}, 32),
    ],
)
def test_as_many_micro_batches_as_make_a_difference(parallel: dict[str, Any], count: int) -> None:
    found = make_dry_run(planned_job(trainer={"max_tokens_per_rank": 9216, "parallel": parallel}))
    assert len(found.micro_batches) == count


def test_a_rank_that_is_not_there_is_refused() -> None:
    assert make_dry_run(planned_job(), 7).rank == 7
    with pytest.raises(ValueError, match=r"--rank 8 does not exist: the ranks are 0 to 7"):
        make_dry_run(planned_job(), 8)


def test_a_vision_tower_is_refused() -> None:
    model = architecture(QWEN3_VL_8B)
    with pytest.raises(ValueError, match=r'vision tower.*--set trainer\.vision_tower="none"'):
        make_dry_run(replace(planned_job(), model=model))
    assert make_dry_run(replace(planned_job(), model=with_vision_tower(model, "none"))).model.tower is None


@pytest.fixture
def undividable(tmp_path: Path) -> PlannedJob:
    """Four heads for three tensor-parallel ranks."""
    folder = make_tiny_model(tmp_path / "model")
    spec = resolved(
        {
            "model": {"path": str(folder)},
            "data": {"path": "rows.jsonl"},
            "rewards": [{"type": "math"}],
            "trainer": {"steps": 1, "parallel": {"tensor": 3}},
        }
    )
    plan = make_plan(spec, cores=2)
    return PlannedJob(spec, plan, needs_of(spec), read_architecture(folder), local_cpu(2), Workload(10, 30))


def test_a_layout_that_cannot_be_traced_says_why(undividable: PlannedJob) -> None:
    with pytest.raises(ValueError, match=r"cannot be traced: trainer\.parallel\.tensor = 3 does not divide"):
        trace_rank(undividable)


def test_a_dry_run_has_a_deadline(undividable: PlannedJob) -> None:
    with pytest.raises(TimeoutError, match=r"the dry run of rank 0 was not finished after 0\.01 s"):
        trace_rank(undividable, seconds=0.01)
