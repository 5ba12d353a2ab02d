"""What two ranks hold in each layout, against the plan."""

import json
from pathlib import Path

import pytest
from trainer_cases import run_ranks

from rlrun.converters.architecture import read_architecture
from rlrun.runner.memory import training
from rlrun.runner.model_size import shares
from rlrun.specs.trainer import ParallelSpec, TrainerSpec
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("memory_worker.py")
LAYOUTS = [
    ("qwen3", {"fsdp": 2}),
    ("qwen3", {"tensor": 2}),
    ("qwen3", {"context": 2}),
    ("qwen3", {"pipeline": 2}),
    ("qwen3_moe", {"fsdp": 2, "expert": 2}),
]


def test_ranks_hold_what_is_planned(tmp_path: Path) -> None:
    folders = {family: make_tiny_model(tmp_path / family, family) for family in ("qwen3", "qwen3_moe")}
    run_ranks(WORKER, 2, [(str(folders[family]), layout) for family, layout in LAYOUTS], tmp_path)
    measured = [json.loads((tmp_path / f"held-{rank}.json").read_text()) for rank in range(2)]
    for number, (family, layout) in enumerate(LAYOUTS):
        model, parallel = read_architecture(folders[family]), ParallelSpec(**layout)
        phase = training(model, TrainerSpec(steps=1, dtype="float32", parallel=parallel), gpu=False)
        parameters, optimizer = map(max, zip(*(rank[number] for rank in measured), strict=True))
        assert phase.part("parameters") == pytest.approx(parameters, rel=0.1), layout
        assert phase.part("optimizer") == pytest.approx(optimizer, rel=0.1), layout
        if parallel.pipeline > 1:
            places = [share.parameters * 4 for share in shares(model, parallel)]
            assert places == pytest.approx([rank[number][0] for rank in measured], rel=0.1)
