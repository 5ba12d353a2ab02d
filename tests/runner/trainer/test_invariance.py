"""The loss and its gradient are one number: whatever the layout, the micro-batches and the order of samples,
for a loss over whole samples, in every reduction, with log-probs asked for between the steps.
"""

import json
from pathlib import Path

import pytest

from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer.invariance_worker import CASES, SPLITS, measure
from tests.runner.trainer.trainer_cases import LAYERS, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("invariance_worker.py")
MOE = "qwen3_moe"
LAYOUTS = {
    "context": ("qwen3", {"context": 2}),
    "pipeline": ("qwen3", {"pipeline": 2}),
    "replicas and shards": ("qwen3", {"replicate": 2, "fsdp": 2}),
    "shards and tensor": ("qwen3", {"fsdp": 2, "tensor": 2}),
    "context and tensor": ("qwen3", {"context": 2, "tensor": 2, "context_balance": "none"}),
    "pipeline and shards": ("qwen3", {"pipeline": 2, "pipeline_schedule": "GPipe", "fsdp": 2}),
    "pipeline and context": ("qwen3", {"pipeline": 2, "pipeline_schedule": "DualPipeV", "context": 2}),
    "interleaved": ("qwen3", {"pipeline": 2, "pipeline_schedule": "Interleaved1F1B", "tensor": 2}),
    "zero bubble": ("qwen3", {"pipeline": 2, "pipeline_schedule": "ZBVZeroBubble", "fsdp": 2}),
    "experts": (MOE, {"fsdp": 2, "tensor": 2, "expert": 4}),
    "pipeline and experts": (MOE, {"pipeline": 2, "fsdp": 2, "expert": 2}),
}
FAST = ("context", "pipeline")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        family: make_tiny_model(root / family, family, scale=0.1, pad_token_id=None, **LAYERS)
        for family in ("qwen3", MOE)
    }


@pytest.fixture(scope="module")
def alone(folders):
    """`alone(family)`: one rank's numbers, of all samples in one micro-batch each reduction."""
    known = {}

    def of(family):
        if family not in known:
            trainer, known[family] = measure(folders[family], {})
            trainer.close()
        return known[family]

    return of


@pytest.fixture(scope="module")
def together(folders, tmp_path_factory):
    """`together(layout)`: every rank's numbers; layouts on as many ranks share a process group."""
    known = {}

    def of(layout):
        if layout not in known:
            out, ranks = tmp_path_factory.mktemp("ranks"), ranks_of(layout)
            mine = [name for name in LAYOUTS if ranks_of(name) == ranks]
            arguments = [(name, str(folders[LAYOUTS[name][0]]), LAYOUTS[name][1]) for name in mine]
            run_ranks(WORKER, ranks, arguments, out)
            found = [json.loads((out / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]
            known.update({name: [rank[name] for rank in found] for name in mine})
        return known[layout]

    return of


def ranks_of(layout):
    return ParallelSpec(**LAYOUTS[layout][1]).world_size


@pytest.mark.parametrize("family", ["qwen3", pytest.param(MOE, marks=pytest.mark.slow)])
def test_on_one_rank(alone, family):
    found = alone(family)
    for case in CASES:
        first, *others = (found[f"{case}, {split}"] for split in SPLITS)
        for other in others:
            assert other == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in LAYOUTS]
)
def test_on_every_layout(alone, together, layout):
    expected = alone(LAYOUTS[layout][0])
    for found in together(layout):
        for case, numbers in expected.items():
            assert found[case] == pytest.approx(numbers, rel=1e-4), case
