"""Which layers each pipeline stage has, and with which it may begin."""

import json

import pytest

from rlrun.specs.derived.pipeline_stages import stage_layers
from rlrun.specs.rules.model_folder import model_findings
from rlrun.specs.sections.trainer import ParallelSpec
from tests.data.published_models import PUBLISHED
from tests.runner.trainer.trainer_cases import make_spec


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(4, 1, [4]), (8, 4, [2, 2, 2, 2]), (10, 4, [2, 3, 3, 2]), (11, 4, [3, 3, 3, 2]), (3, 2, [2, 1])],
)
def test_stages_have_as_many_layers_each(layers, stages, sizes):
    ranges = stage_layers(layers, ParallelSpec(pipeline=stages))
    assert [len(each) for each in ranges] == sizes
    assert [layer for each in ranges for layer in each] == list(range(layers))


def test_stages_have_the_layers_that_the_spec_gives_them():
    parallel = ParallelSpec(pipeline=2, pipeline_schedule="ZBVZeroBubble", pipeline_layers=(3, 2, 2, 1))
    assert stage_layers(8, parallel) == [range(3), range(3, 5), range(5, 7), range(7, 8)]


@pytest.mark.parametrize(("sizes", "refused"), [(None, True), ([38, 40], False), ([40, 38], True)])
def test_a_stage_cannot_begin_with_a_layer_that_shares_a_choice(sizes, refused, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["GLM-5.2"][0]))
    spec = make_spec(tmp_path, {"pipeline": 2, "pipeline_layers": sizes})
    found = [finding.message for finding in model_findings(spec) if "pipeline stage" in finding.message]
    assert len(found) == refused
