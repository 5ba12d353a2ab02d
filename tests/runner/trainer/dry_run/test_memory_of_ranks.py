"""What two ranks hold in each layout, against the plan and against a dry run of each of them.

Together they tell what training them takes; each alone, to the byte what it has at most.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlrun.converters.tensors.base_blocks import decode, encode
from rlrun.models.config_json import read_architecture
from rlrun.runner.planning.deep_plan import DryRun
from rlrun.runner.planning.memory import training_phase
from rlrun.runner.planning.rank_share import rank_shares
from rlrun.runner.trainer.dry_run.rank import dry_run
from rlrun.specs.sections.trainer import ParallelSpec
from tests.resolved_specs import resolved_trainer
from tests.runner.trainer.trainer_cases import make_spec, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("memory_worker.py")
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"fsdp": 2}),
    ("qwen3", {"tensor": 2}),
    ("qwen3", {"context": 2}),
    ("qwen3_5_text", {"context": 2}),
    ("qwen3", {"pipeline": 2}),
    ("qwen3_moe", {"fsdp": 2, "expert": 2}),
]
RANKS = [
    pytest.param(
        number,
        rank,
        marks=pytest.mark.slow if rank and "pipeline" not in layout else (),
        id=f"{name}-{layout}-{rank}",
    )
    for number, (name, layout) in enumerate(LAYOUTS)
    for rank in (0, 1)
]
"""Only in a pipeline does the second rank hold other parameters than the first."""
HELD = ("parameters", "gradients", "optimizer")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: make_tiny_model(root / family, family) for family, _ in LAYOUTS}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of twelve layers."""
    return make_tiny_model(tmp_path_factory.mktemp("deep"), num_hidden_layers=12)


@pytest.fixture(scope="module")
def together(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[list[dict[str, Any]]]:
    """By layout and rank, of two ranks that wait for each other."""
    out = tmp_path_factory.mktemp("together")
    run_ranks(WORKER, 2, cases(folders), out)
    ranks = [json.loads((out / f"held-{rank}.json").read_text()) for rank in range(2)]
    return [list(each) for each in zip(*ranks, strict=True)]


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Returns the memory by layout and rank, traced in the background."""
    out = tmp_path_factory.mktemp("alone")
    run_ranks(WORKER, 1, cases(folders), out)
    found: list[list[dict[str, Any]]] = json.loads((out / "held-0.json").read_text())
    return found


def cases(folders: dict[str, Path]) -> list[tuple[str, dict[str, Any]]]:
    return [(str(folders[family]), layout) for family, layout in LAYOUTS]


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=[f"{name}-{more}" for name, more in LAYOUTS])
def test_ranks_hold_what_is_planned(
    number: int, folders: dict[str, Path], together: list[list[dict[str, Any]]]
) -> None:
    family, layout = LAYOUTS[number]
    model, parallel = read_architecture(folders[family]), ParallelSpec(**layout)
    phase = training_phase(model, resolved_trainer(steps=1, dtype="float32", parallel=parallel), gpu=False)
    for name in HELD:
        assert phase.part_bytes(name) == pytest.approx(max(rank[name] for rank in together[number]), rel=0.1)
    if parallel.pipeline > 1:
        places = [share.parameters * 4 for share in rank_shares(model, parallel)]
        assert places == pytest.approx([rank["parameters"] for rank in together[number]], rel=0.1)


@pytest.mark.parametrize(("number", "rank"), RANKS)
def test_a_dry_run_tells_what_a_rank_holds(
    number: int,
    rank: int,
    folders: dict[str, Path],
    together: list[list[dict[str, Any]]],
    alone: list[list[dict[str, Any]]],
) -> None:
    family, layout = LAYOUTS[number]
    waiting, unhindered = together[number][rank], alone[number][rank]
    spec = make_spec(folders[family], layout, max_tokens_per_rank=300)
    request = DryRun(
        spec.model_dump_json(), read_architecture(folders[family]), rank, tuple(waiting["micro_batches"])
    )
    traced = dry_run(request)
    for name in HELD:
        assert traced["most"][name] == pytest.approx(waiting[name], rel=0.01)
        assert unhindered[name] == waiting[name]
    at_peak = sum(traced["peak"].values()) - waiting["parameters"] - waiting["optimizer"]
    assert at_peak == pytest.approx(unhindered["beside"], rel=0.02)
    assert at_peak < 1.06 * waiting["beside"]  # which errs upwards alone: what waits is freed later


@pytest.mark.parametrize(
    ("base", "policy"),
    [
        pytest.param(None, "always", marks=pytest.mark.slow),
        ("int8", "never"),
        ("nf4", "always"),
        pytest.param(None, "never", marks=pytest.mark.slow),
        pytest.param("int8", "always", marks=pytest.mark.slow),
        pytest.param("nf4", "never", marks=pytest.mark.slow),
    ],
)
def test_layers_of_a_frozen_base_are_gathered_as_they_are_held(
    tmp_path: Path, base: str | None, policy: str
) -> None:
    """Codes are gathered as bytes; a vocabulary of 64 keeps the head from being the largest block."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 64, "num_hidden_layers": 8}
    folder = make_tiny_model(tmp_path / "model", **sizes)
    lora = {"rank": 4, "alpha": 8.0, "base": base}
    parallel = {"fsdp": 2, "reshard_after_forward": policy}
    spec = make_spec(folder, parallel, max_tokens_per_rank=300, lora=lora, dtype="bfloat16")
    model = read_architecture(folder)
    traced = dry_run(DryRun(spec.model_dump_json(), model, 0, (((20, 40),),) * 2))
    planned = training_phase(model, spec.trainer, gpu=False).part_bytes("gathered layers")
    assert traced["most"]["gathered layers"] == pytest.approx(planned, rel=0.1)
    if base == "nf4":
        # tables that are computed once have their values again
        assert decode(encode(torch.ones(1, 64), base), base).eq(1).all()


@pytest.mark.parametrize(
    ("layout", "policy"),
    [
        ({"fsdp": 2}, "default"),
        pytest.param({"fsdp": 2}, "never", marks=pytest.mark.slow),
        pytest.param({"fsdp": 2, "pipeline": 2}, "default", marks=pytest.mark.slow),
        ({"fsdp": 2, "pipeline": 2}, "always"),
    ],
)
def test_gathered_layers_take_the_planned_memory(deep: Path, layout: dict[str, int], policy: str) -> None:
    spec = make_spec(deep, layout | {"reshard_after_forward": policy}, max_tokens_per_rank=300)
    model = read_architecture(deep)
    traced = dry_run(DryRun(spec.model_dump_json(), model, 0, (((20, 40),),) * 4))
    planned = training_phase(model, spec.trainer, gpu=False).part_bytes("gathered layers")
    if spec.trainer.parallel.pipeline == 1:
        assert traced["most"]["gathered layers"] == pytest.approx(planned, rel=0.25)
    else:  # gradients that a pipeline has not reduced yet are traced as temporaries
        peak = traced["peak"]
        assert peak["gathered layers"] + peak["temporaries"] == pytest.approx(planned, rel=0.1)
