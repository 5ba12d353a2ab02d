"""What engines are started with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.cluster.actors import EngineActor
from rlrun.runner.cluster.engine_setups import ServedModelSetup, engine_setup, policy_model_setup
from rlrun.runner.cluster.ray_nodes import Node
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.sglang.server import command
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.host.remote_code import CodeFile
from rlrun.runner.planning.plan import make_plan
from tests.converters.families.test_lora import make_adapter
from tests.resolved_specs import resolved
from tests.tiny_models import make_tiny_model


def setup_of(kind: str, head_dtype: str, **changes: Any) -> Any:
    """The setup of the first engine of a job."""
    files = ModelFiles(changes.pop("folder", Path("tiny")), None, changes.pop("code", None))
    spec = resolved(
        {
            "model": {"path": "tiny"},
            "data": {},
            "engine": ({"type": kind, "python": "python3"} if kind == "sglang" else {"type": kind})
            | changes.pop("engine", {}),
            "trainer": {"steps": 1, "head_dtype": head_dtype, "lora": changes.pop("lora", None)},
            **changes,
        }
    )
    plan = make_plan(spec, cores=1)
    served = ServedModelSetup(spec.engine, files, 100, None, "key", Path("weights"))
    if spec.engines:
        served = policy_model_setup(spec, plan, files, Path("weights"))
    return engine_setup(spec, served, plan.engines[0], Process(request_of(0), None, Node("127.0.0.1", 1)), 0)


@pytest.mark.parametrize("head_dtype", ["model", "float32"])
def test_engines_are_told_of_a_float32_head(head_dtype: str) -> None:
    native, sglang = setup_of("native", head_dtype), setup_of("sglang", head_dtype)
    assert isinstance(native, EngineSetup)
    assert isinstance(sglang, SglangSetup)
    assert native.head_dtype == head_dtype
    assert ("--enable-fp32-lm-head" in command(sglang, 1)) == (head_dtype == "float32")


@pytest.mark.parametrize("code", [None, (CodeFile("tokenization.py", 1, "hash"),)])
def test_engines_run_only_the_code_that_is_trusted(code: tuple[CodeFile, ...] | None) -> None:
    native, sglang = setup_of("native", "model", code=code), setup_of("sglang", "model", code=code)
    assert native.code == sglang.code == code
    assert ("--trust-remote-code" in command(sglang, 1)) == (code is not None)


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
    ("engine", "keeps"),
    [
        ({}, False),
        ({"speculative": {"algorithm": "ngram"}}, False),
        ({"speculative": {"algorithm": "mtp"}}, True),
        ({"speculative": {"algorithm": "eagle3", "draft_model": "/draft"}}, True),
        ({"speculative": {"algorithm": "mtp"}, "sleep": False}, False),
    ],
)
def test_a_sleeping_server_keeps_its_draft_model_in_host_memory(engine: dict[str, Any], keeps: bool) -> None:
    """No update brings its weights back."""
    line = command(setup_of("sglang", "model", **GPU, engine=engine), 1)
    assert ("--enable-draft-weights-cpu-backup" in line) == keeps


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        ({}, 2),
        ({"rollout": {"mode": "async", "max_staleness": 3}, "cluster": {"placement": "disaggregated"}}, 5),
        ({"engine": {"lora_sync": "merged"}}, None),
        ({"engine": {"weight_sync": "disk"}}, 2),
        ({"engine": {"weight_sync": "broadcast"}}, None),
    ],
)
def test_a_server_has_room_for_the_adapters_of_all_versions(
    changes: dict[str, Any], room: int | None, tiny_model: Path
) -> None:
    lora = {"rank": 4, "targets": ["q_proj", "v_proj", "down_proj"]}
    words = command(setup_of("sglang", "model", lora=lora, folder=tiny_model, **changes), 1)
    expected = {
        "--max-loras-per-batch": [str(room)],
        "--max-loaded-loras": [str(room)],
        "--max-lora-rank": ["4"],
        "--lora-target-modules": ["q_proj", "v_proj", "down_proj"],
        "--lora-backend": ["torch_native"],
    }
    given = {
        flag: words[words.index(flag) + 1 : words.index(flag) + 1 + len(values)]
        for flag, values in expected.items()
        if flag in words
    }
    assert given == ({} if room is None else expected)
    assert ("--enable-lora" in words) == (room is not None)


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        (GPU, True),
        (GPU | {"engine": {"sleep": False}}, False),
        (GPU | {"engine": {"lora_sync": "merged"}}, False),
    ],
    ids=["sleeps", "stays awake", "merged"],
)
def test_a_sleeping_server_keeps_the_model_that_adapters_belong_to(
    changes: dict[str, Any], copies: bool, tiny_model: Path
) -> None:
    words = command(setup_of("sglang", "model", lora={"rank": 4}, folder=tiny_model, **changes), 1)
    assert ("--enable-weights-cpu-backup" in words) == copies


@pytest.mark.parametrize(
    ("changes", "arguments", "environment"),
    [
        (
            {"engine": {"dtype": "float32"}},
            {"json_model_override_args", "mamba_radix_cache_strategy", "disable_overlap_schedule"},
            {"SGLANG_MAMBA_CONV_DTYPE": "float32"},
        ),
        (GPU, {"json_model_override_args"}, {}),
        (
            GPU | {"engine": {"dtype": "float32", "environment": {"SGLANG_MAMBA_CONV_DTYPE": "float16"}}},
            {"json_model_override_args"},
            {"SGLANG_MAMBA_CONV_DTYPE": "float16"},
        ),
    ],
    ids=["CPU", "bfloat16 on a GPU", "own variable"],
)
def test_a_server_of_gated_delta_net_gets_what_the_model_needs(
    changes: dict[str, Any], arguments: set[str], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_5_text")
    setup = setup_of("sglang", "model", folder=folder, **changes)
    recurrent = ("json_model", "mamba", "disable_overlap")
    assert {name for name in setup.arguments if name.startswith(recurrent)} == arguments
    override = json.loads(setup.arguments["json_model_override_args"])
    assert override == {
        "full_attention_interval": 4,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    }
    mamba = {name: value for name, value in setup.environment.items() if "MAMBA" in name}
    assert mamba == environment
    assert not [name for name in setup_of("sglang", "model").arguments if name.startswith(recurrent)]


def test_the_policys_server_has_the_adapters_of_other_models_from_its_start(
    tiny_model: Path, tmp_path: Path
) -> None:
    judge, _ = make_adapter(tmp_path / "judge", {"model.layers.0.self_attn.o_proj": (64, 64)}, rank=16)
    engines = [{"name": "judge", "adapter": str(judge), "type": "sglang", "max_length": 9000}]
    lora = {"rank": 4, "targets": ["down_proj"]}
    words = command(setup_of("sglang", "model", lora=lora, folder=tiny_model, engines=engines), 1)
    for flag, value in (
        ("--max-loaded-loras", "3"),
        ("--max-loras-per-batch", "3"),
        ("--max-lora-rank", "16"),
        ("--context-length", "9000"),
    ):
        assert words[words.index(flag) + 1] == value
    assert words[words.index("--lora-target-modules") + 1 :][:2] == ["down_proj", "o_proj"]
    pinned = json.loads(words[words.index("--lora-paths") + 1])
    assert pinned == {"lora_name": "judge", "lora_path": str(judge), "pinned": True}


def test_servers_of_a_group_get_its_arguments_over_those_of_the_engine() -> None:
    groups = [{"sglang": {"chunked_prefill_size": 64}}, {"count": 2, "sglang": {"stream_interval": 8}}]
    engine = {
        "type": "sglang",
        "python": "python3",
        "sglang": {"chunked_prefill_size": 512, "page_size": 16},
        "groups": groups,
    }
    spec = resolved({"model": {"path": "tiny"}, "data": {}, "engine": engine, "trainer": {"steps": 1}})
    plan = make_plan(spec, cores=1)
    served = policy_model_setup(spec, plan, ModelFiles(Path("tiny"), None, None), Path("weights"))
    setups = [
        engine_setup(spec, served, engine, Process(request_of(engine.index), None, Node("127.0.0.1", 1)), 0)
        for engine in plan.engines
    ]
    given = [setup.arguments for setup in setups if isinstance(setup, SglangSetup)]
    sizes = [(one["chunked_prefill_size"], one["page_size"], one.get("stream_interval")) for one in given]
    assert sizes == [(64, 16, None), (512, 16, 8), (512, 16, 8)]


def test_servers_are_told_their_role_and_where_caches_are_handed_over() -> None:
    groups = [{"role": "prefill"}, {"role": "decode", "sglang": {"disaggregation_transfer_backend": "nixl"}}]
    engine = {"type": "sglang", "python": "python3", "groups": groups}
    spec = resolved({"model": {"path": "tiny"}, "data": {}, "engine": engine, "trainer": {"steps": 1}})
    plan = make_plan(spec, cores=1)
    served = policy_model_setup(spec, plan, ModelFiles(Path("tiny"), None, None), Path("weights"))
    prefill, decode = (
        engine_setup(spec, served, engine, Process(request_of(engine.index), None, Node("127.0.0.1", 1)), 0)
        for engine in plan.engines
    )
    assert isinstance(prefill, SglangSetup)
    assert isinstance(decode, SglangSetup)
    words = " ".join(command(replace(prefill, bootstrap_port=34001), 1))
    assert "--disaggregation-mode prefill --disaggregation-bootstrap-port 34001" in words
    words = " ".join(command(decode, 1))
    assert "--disaggregation-mode decode --disaggregation-transfer-backend nixl" in words
    assert "bootstrap" not in words


def request_of(index: int) -> Request:
    return Request(f"engine {index}", EngineActor, None, {}, Path(f"engine-{index}.log"))  # type: ignore[arg-type]
