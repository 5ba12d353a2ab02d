"""What engines are started with."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.cluster.engine_actors import EngineActor
from rlrun.runner.cluster.engine_setups import ServedModelSetup, engine_setup
from rlrun.runner.cluster.ray_nodes import Node
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.sglang.server_command import command
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.sections.job import Spec


def setup_of(kind: str, head_dtype: str, **changes: Any) -> Any:
    """The setup of the first engine of a job."""
    folder = changes.pop("folder", Path("tiny"))
    spec = Spec.model_validate(
        {
            "model": {"path": "tiny"},
            "data": {},
            "engine": ({"type": kind, "python": "python3"} if kind == "sglang" else {"type": kind})
            | changes.pop("engine", {}),
            "trainer": {"steps": 1, "head_dtype": head_dtype, "lora": changes.pop("lora", None)},
            **changes,
        }
    )
    request = Request("engine 0", EngineActor, None, {}, Path("engine-0.log"))  # type: ignore[arg-type]
    served = ServedModelSetup(spec.engine, ModelFiles(folder, None), 100, None, "key", Path("weights"))
    return engine_setup(
        spec, served, make_plan(spec, cores=1).engines[0], Process(request, None, Node("127.0.0.1", 1)), 0
    )


@pytest.mark.parametrize("head_dtype", ["model", "float32"])
def test_engines_are_told_of_a_float32_head(head_dtype: str) -> None:
    native, sglang = setup_of("native", head_dtype), setup_of("sglang", head_dtype)
    assert isinstance(native, EngineSetup)
    assert isinstance(sglang, SglangSetup)
    assert native.head_dtype == head_dtype
    assert ("--enable-fp32-lm-head" in command(sglang, 1)) == (head_dtype == "float32")


def test_a_native_engine_reads_weights_only_from_the_folder_of_its_run() -> None:
    assert setup_of("native", "model").weight_folders == ("weights",)


GPU = {"cluster": {"gpus_per_node": 1}}
PAUSABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"


@pytest.mark.parametrize(
    ("changes", "pausable", "prefill"),
    [
        (GPU, True, "disabled"),
        (GPU | {"engine": {"sleep": False}}, False, None),
        ({"engine": {"sleep": True}}, False, None),
        (GPU | {"engine": {"sglang": {"cuda_graph_backend_prefill": "breakable"}}}, False, "breakable"),
        (GPU | {"engine": {"environment": {PAUSABLE: "0"}}}, False, "disabled"),
    ],
    ids=["sleeps on a GPU", "stays awake", "sleeps on a CPU", "own graphs", "own variable"],
)
def test_a_sleeping_server_frees_its_cuda_graphs(
    changes: dict[str, Any], pausable: bool, prefill: str | None
) -> None:
    """With the variable, SGLang refuses its default graphs for prefill, so they are turned off."""
    setup = setup_of("sglang", "model", **changes)
    assert setup.environment.get(PAUSABLE, "0") == ("1" if pausable else "0")
    line = command(setup, 1)
    flag = "--cuda-graph-backend-prefill"
    assert (line[line.index(flag) + 1] if flag in line else None) == prefill


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        ({}, 2),
        ({"rollout": {"mode": "async", "max_staleness": 3}, "cluster": {"placement": "disaggregated"}}, 5),
        ({"engine": {"lora_sync": "merged"}}, None),
        ({"engine": {"weight_sync": "disk"}}, None),
    ],
)
def test_a_server_has_room_for_the_adapters_of_all_versions(
    changes: dict[str, Any], room: int | None, tiny_model: Path
) -> None:
    lora = {"rank": 4, "targets": ["q_proj", "down_proj"]}
    words = command(setup_of("sglang", "model", lora=lora, folder=tiny_model, **changes), 1)
    expected = {
        "--max-loras-per-batch": [str(room)],
        "--max-loaded-loras": [str(room)],
        "--max-lora-rank": ["4"],
        "--lora-target-modules": ["q_proj", "down_proj"],
        "--lora-backend": ["torch_native"],
    }
    given = {
        flag: words[words.index(flag) + 1 : words.index(flag) + 1 + len(values)]
        for flag, values in expected.items()
        if flag in words
    }
    assert given == ({} if room is None else expected)
    assert ("--enable-lora" in words) == (room is not None)
