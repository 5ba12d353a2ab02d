"""Every reader of bytes that rlrun did not write returns a result, or raises an error of ours."""

import asyncio
import io
import json
import shutil
import struct
import tempfile
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tomli
import torch
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from rlrun.cli import score
from rlrun.converters.families.stored_adapter import read_stored_adapter
from rlrun.converters.folders.checksums import checksums_text, read_checksums
from rlrun.converters.folders.hf_folder import INDEX, read_tensors
from rlrun.converters.prime_rl.importer import import_files as import_prime
from rlrun.converters.quantised.kinds import dequantise
from rlrun.converters.shell.script import Word
from rlrun.converters.slime.importer import import_command, import_script
from rlrun.converters.tensors.content import plain
from rlrun.converters.tensors.safetensors_format import read_header
from rlrun.converters.trl.importer import import_file as import_trl
from rlrun.converters.verl.importer import import_file as import_verl
from rlrun.models.config_json import read_architecture
from rlrun.models.hub import cached_config
from rlrun.models.json_files import parse_json, read_json_object, tensor_shapes
from rlrun.plugins.data.jsonl import Jsonl, JsonlParams
from rlrun.plugins.data.parquet import Parquet, ParquetParams
from rlrun.plugins.images import checked_image, image_of_url
from rlrun.plugins.rewards.code.reward import row_tests
from rlrun.plugins.rewards.http_client import number_or_table
from rlrun.plugins.rollouts.agent.wires.table import WIRES
from rlrun.plugins.rollouts.agent.wires.table import read_request as read_agent_request
from rlrun.plugins.rollouts.tool_calls import parse_calls
from rlrun.plugins.tools import remote as remote_tool
from rlrun.plugins.tools.search import Search, SearchParams
from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.checkpoints.reading import DRIVER, read_driver
from rlrun.runner.conform.comparison import conform
from rlrun.runner.conform.dump import read_dump
from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.channel_frames import read_frames
from rlrun.runner.engines.client.answer_fields import json_object, read_json, read_load, version_number
from rlrun.runner.engines.client.parsing import ModelLimits, parse_generations, parse_scores
from rlrun.runner.engines.native.http.bodies import parse_body
from rlrun.runner.engines.native.http.protocol import parse_generate_request
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.served_weights import served_weight_bytes
from rlrun.runner.prompts.end_tokens import end_token_ids
from rlrun.runner.prompts.shared_vocabulary import check_same_tokens
from rlrun.runner.prompts.template import template_problem
from rlrun.runner.records.diagnosis import read_diagnosis
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_images import find_in_folder
from rlrun.runner.records.saved_rollouts import map_records, read_groups
from rlrun.runner.scoring.worker import measured
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.view.export import collect
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.page import to_json
from rlrun.runner.view.viewed_run import ViewedRun
from rlrun.runner.weights.carriers.disk.reader import parse_deltas
from rlrun.runner.weights.carriers.native.reader import parse_manifest
from rlrun.runner.weights.carriers.reader import parse_version
from rlrun.runner.weights.deltas.applying import DeltaFiles, apply_deltas
from rlrun.runner.weights.form import engine_form
from rlrun.specs.reading.loading import load_spec
from rlrun.specs.rules.engine_rules import served_model
from rlrun.specs.sections.job import Spec
from tests.foreign_bytes import Reader, foreign_bytes, ours_or_a_result
from tests.pictures import picture
from tests.runner.view.view_runs import metrics_line, record, write_readable_spec, write_run

DUMP = Path(__file__).parent / "runner/conform/dumps/grpo/step-2.npz"
with np.load(DUMP) as _arrays:
    DUMP_SETTINGS = str(_arrays["settings"]).encode()
CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": [1, 2],
    "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 14},
}
REQUEST = GenerateRequest("r", np.array([5, 6, 7], np.int32), (1,), Sampling(max_new_tokens=4))
ANSWER = {
    "output_ids": [8, 9],
    "meta_info": {
        "id": "r-0",
        "finish_reason": {"type": "stop", "matched": 9},
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "num_retractions": 1,
        "weight_version": "4",
        "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
        "output_token_logprobs": [[-0.5, 8, None], [-0.25, 9, None]],
        "routed_experts": b64encode(np.zeros(8, np.int32).tobytes()).decode(),
        "spec_num_proposed_drafts": 2,
        "spec_num_correct_drafts": 1,
        "spec_verify_ct": 1,
    },
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
IMAGE_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
AGENT_REQUESTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "q"}], "tools": [TOOL], "stop": ["x"], "max_tokens": 3},
    {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}, IMAGE_BLOCK]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "1"},
                    {"type": "tool_use", "id": "call_1_0", "name": "add", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1_0", "content": "2"}]},
        ],
        "tools": [{"name": "add", "input_schema": {}}],
        "max_tokens": 5,
        "stop_sequences": ["x"],
    },
    {
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "call_1_0", "name": "add", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "call_1_1", "name": "patch", "input": "x"},
            {"type": "function_call_output", "call_id": "call_1_0", "output": "2"},
        ],
        "tools": [{"type": "function", "name": "add"}, {"type": "namespace", "name": "n", "tools": []}],
        "text": {"format": {"type": "text"}},
    },
    {"token_ids": [1, 2], "sampling_params": {"max_tokens": 5, "stop": "x"}},
)
ROW = {
    "prompt": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image"}]},
    ],
    "label": "4",
    "metadata": {"level": 3},
    "tools": json.dumps([TOOL]),
    "images": [{"bytes": None, "path": "a.png"}],
}
KEYS = {"tools_key": "tools", "images_key": "images", "image_hosts": ["127.0.0.1"]}
OWNER = {"pid": 1, "host": "elsewhere", "boot_id": "b", "pid_namespace": 1, "start_ticks": 1}
STATE = OWNER | {
    "status": "running",
    "started": "2026-01-01T00:00:00+00:00",
    "updated": "2026-01-01T00:00:00+00:00",
    "step": 3,
    "steps": 4,
    "metrics": {"rollout/reward/mean": 0.5},
    "error": None,
    "processes": {"driver": 3},
}
SPEC = b"""
[model]
path = "m"
[data]
type = "jsonl"
path = "rows.jsonl"
[[rewards]]
type = "random"
[algorithm]
type = "grpo"
[trainer]
steps = 3
"""
SCRIPT = b"""
ARGS=(--hf-checkpoint /m --num-rollout 3 --lr 1e-6)
python3 train.py "${ARGS[@]}" --multimodal-keys '{"image": "images"}'
"""
TOKENIZER = json.dumps(
    {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "added_tokens": [{"content": "<end>", "id": 3}],
    }
).encode()
WEIGHTS = save({"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)})


def written(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of the file `name`; it is given the file's path."""

    def read_file(data: bytes, folder: Path) -> object:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return read(folder / name)

    return read_file


def run_with(name: str, packed: bool = False) -> Callable[[bytes, Path], object]:
    """A reader of the file `name` of a run: everything that the page and `status` show of the run."""

    def read(data: bytes, folder: Path) -> object:
        run = write_run(folder / "run", steps=2)
        write_readable_spec(run)
        content = zstandard.ZstdCompressor(write_checksum=True).compress(data) if packed else data
        (run.path / name).write_bytes(content)
        indexer = Indexer(run, folder / "index.sqlite")
        indexer.update()
        page = to_json(collect([ViewedRun(run, indexer)]))
        assert page
        assert isinstance(read_diagnosis(run).alerts, list | tuple)
        return run.current_state()

    return read


def saved_groups() -> bytes:
    tokens = np.array([8, 9], np.int32)
    values = np.array([-0.5, -0.25], np.float32)
    prompt = Prompt(Row("3", "What is 2 + 2?", "4", {}), 3, np.array([5, 6], np.int32))
    spans = (VersionSpan(1, 0, 2),)
    sample = Sample("3-0", prompt, tokens, values, np.ones(2, np.float32), spans, Status.COMPLETED, "4")
    sample.experts = np.zeros((3, 2), np.int16)
    return lines(*map_records([(Group(prompt, [sample]), sample)], whole=True))


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def lines(*values: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


def parquet_file() -> bytes:
    file = io.BytesIO()
    rows = [{"prompt": "q", "label": str(number), "metadata": {"level": number}} for number in range(20)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=10)
    return file.getvalue()


def read_rows(kind: Any, params: Any) -> object:
    previewed = list(kind.preview(params, 3)), kind.columns(params)
    source = kind(params)
    rows = []
    for number in range(min(len(source), 20)):
        try:
            rows.append(source[number])
        except ValueError as error:
            assert str(error)  # the run counts the row as broken
    return previewed, rows


def read_jsonl(path: Path) -> object:
    (path.parent / "a.png").write_bytes(picture())
    return read_rows(Jsonl, JsonlParams(path=str(path), unique=True, **KEYS))


def read_parquet(path: Path) -> object:
    return read_rows(Parquet, ParquetParams(path=str(path), unique=True))


def read_adapter(data: bytes, folder: Path) -> object:
    (folder / "adapter_config.json").write_bytes(data)
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return read_stored_adapter(folder)


def read_index(data: bytes, folder: Path) -> object:
    (folder / INDEX).write_bytes(data)
    (folder / "model-1.safetensors").write_bytes(WEIGHTS)
    return read_tensors(folder)


def read_delta(path: Path) -> None:
    apply_deltas([DeltaFiles(0, (str(path),))], {"a": torch.zeros(4)})


def delta_file() -> bytes:
    parts = {"a|gaps": torch.tensor([1, 0], dtype=torch.uint8), "a|steps": torch.ones(2, dtype=torch.int8)}
    metadata = {"changed": '{"a": ["float32", [4]]}'}
    return save(parts | {"a|values": torch.ones(0, dtype=torch.int32)}, metadata)


def quantised(**settings: Any) -> bytes:
    return json.dumps(CONFIG | {"quantization_config": settings}).encode()


def packed(**settings: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"group_size": 32, **settings}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


def read_served(data: bytes, folder: Path) -> object:
    """What the rules, the plan and an update of weights read in the config.json of `engine.model`."""
    (folder / "config.json").write_bytes(data)
    engine = {"type": "sglang", "model": str(folder), "dtype": "bfloat16"}
    spec = Spec.model_validate({"model": {"path": str(folder)}, "data": {}, "engine": engine})
    findings = [*served_model(spec)]
    served_weight_bytes(read_architecture(folder), spec.engine)
    config = read_json_object(folder / "config.json")
    codes = torch.zeros(8, 8, dtype=torch.float8_e4m3fn)
    (folder / "model.safetensors").write_bytes(
        save({"a.weight": codes, "a.weight_scale_inv": torch.ones(1, 1)})
    )
    contents = {name: plain(tensor) for name, tensor in read_tensors(folder).items()}
    with suppress(ValueError):  # the example's weight is not in INT4
        dequantise(contents, config, torch.float32)
    return findings, engine_form("bfloat16", config, ["a.weight"])


def read_teachers_tokens(data: bytes, folder: Path) -> None:
    models = [folder / "policy", folder / "teacher"]
    for model, content in zip(models, (TOKENIZER, data), strict=True):
        model.mkdir()
        (model / "tokenizer.json").write_bytes(content)
    check_same_tokens(ModelFiles(models[0], None), "teacher", ModelFiles(models[1], None))


def read_scored_lines(data: bytes, folder: Path) -> object:
    return [*score._lines(data.decode("utf-8", "replace").splitlines(), find_in_folder(folder))]


def read_settings(data: bytes, _: Path) -> None:
    """The YAML files that flags of slime name."""
    flags = "--hf-checkpoint m --num-rollout 3 --use-tis --custom-tis-function-path mis.compute_mis_weights "
    flags += "--custom-config-path s --eval-config s --sglang-config s"
    words = [Word(word, "run.sh:1") for word in ("train.py", *flags.split())]
    draft = import_command("run.sh", "run", words, (), lambda _: data.decode("utf-8", "replace"))
    tomli.loads(draft.toml())


def read_passages(path: Path) -> None:
    asyncio.run(Search(SearchParams(path=str(path))).close())


def read_index_of_passages(path: Path) -> None:
    corpus = path.with_name("corpus.txt")
    corpus.write_text("one\n\ntwo")
    asyncio.run(Search(SearchParams(path=str(corpus), index=str(path))).close())


def index_of_passages() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        read_index_of_passages(Path(folder) / "index.sqlite")
        return (Path(folder) / "index.sqlite").read_bytes()


def of_json(read: Callable[[Any], object]) -> Callable[[bytes, Path], object]:
    """A reader of a value that arrives as JSON."""
    return lambda data, _: read(parse_json(data))


def of_answer(read: Callable[[Any], object]) -> Callable[[bytes, Path], object]:
    """A reader of an engine's answer that must be a JSON object."""
    return lambda data, _: read(json_object(read_json(data), "the answer"))


def read_request(data: bytes, _: Path) -> object:
    body = parse_body(data)
    return parse_generate_request(body, lambda: "new", lambda: 0)


def read_update(data: bytes, _: Path) -> object:
    body = parse_body(data)
    return parse_version(body.get("weight_version")), parse_deltas(body.get("deltas"), str)


def read_dumped_settings(data: bytes, folder: Path) -> object:
    with np.load(DUMP) as arrays:
        np.savez(folder / "dump.npz", **{**arrays, "settings": data.decode("utf-8", "replace")})
    return conform(read_dump(folder / "dump.npz"))


def read_reward(value: Any) -> object:
    reward = number_or_table(value)
    return measured(reward, "score" if isinstance(reward, dict) else None)


READERS = [
    # a run's folder
    Reader(
        "state.json",
        json.dumps(STATE).encode(),
        written("state.json", lambda path: RunFolder(path.parent).current_state()),
    ),
    Reader("state.json of a page", json.dumps(STATE).encode(), run_with("state.json")),
    Reader("metrics.jsonl", metrics_line(1).encode() * 2, run_with("metrics.jsonl")),
    Reader(
        "timeline.jsonl",
        lines({"step": 1, "time": 0.0, "spans": [["driver", "train", 0.0, 1.0]]}),
        run_with("timeline.jsonl"),
    ),
    Reader(
        "spec.lock.json",
        json.dumps({"spec": {"model": {"path": "x"}}, "model": {"sha256": "0"}}).encode(),
        run_with("spec.lock.json"),
    ),
    Reader("vocabulary.jsonl", lines([1, "a"], [2, {"hex": "e282"}]), run_with("rollouts/vocabulary.jsonl")),
    Reader("samples", lines(record(1, 0), record(1, 1)), run_with("rollouts/step-1.jsonl.zst", packed=True)),
    Reader(
        "packed samples",
        compressed(lines(record(1, 0))),
        run_with("rollouts/step-1.jsonl.zst"),
        is_json=False,
    ),
    Reader(
        "saved groups",
        saved_groups(),
        lambda data, folder: written("step-1.jsonl.zst", read_groups)(compressed(data), folder),
    ),
    Reader(
        "driver.json",
        json.dumps({"step": 1, "buffer": []}).encode(),
        written(DRIVER, lambda path: read_driver(path.parent)),
    ),
    Reader(
        "checksums.txt",
        checksums_text({"a": "0" * 32}).encode(),
        written("checksums.txt", lambda path: read_checksums(path.parent)),
        is_json=False,
    ),
    Reader(
        "sweep.json",
        json.dumps(
            {
                "metric": "train/loss",
                "larger": False,
                "trials": [{"name": "1", "values": {"trainer.lr": 0.1}}],
            }
        ).encode(),
        written("sweep.json", lambda path: SweepFolder(path.parent).states()),
    ),
    # data
    Reader(
        "rows of JSON lines",
        lines(ROW, ROW | {"prompt": "What is 2 + 2?", "images": []}),
        written("rows.jsonl", read_jsonl),
    ),
    Reader("rows of Parquet", parquet_file(), written("rows.parquet", read_parquet), is_json=False),
    Reader("a dump of another trainer", DUMP.read_bytes(), written("dump.npz", read_dump), is_json=False),
    Reader("a dump's settings", DUMP_SETTINGS, read_dumped_settings),
    Reader("a PNG", picture(), lambda data, _: checked_image(data), is_json=False),
    Reader("a JPEG", picture(format="JPEG"), lambda data, _: checked_image(data), is_json=False),
    Reader("a GIF", picture(format="GIF"), lambda data, _: checked_image(data), is_json=False),
    Reader("a TIFF", picture(format="TIFF"), lambda data, _: checked_image(data), is_json=False),
    Reader(
        "a data URL",
        b"data:image/png;base64," + b64encode(picture()),
        lambda data, _: image_of_url(data.decode("latin-1")),
        is_json=False,
    ),
    Reader(
        "tests of a row",
        json.dumps({"inputs": ["1", ["2"]], "outputs": ["1", "2"], "fn_name": "f"}).encode(),
        lambda data, _: row_tests(data.decode("utf-8", "replace"), {}),
    ),
    # model folders
    Reader(
        "config.json",
        json.dumps(CONFIG).encode(),
        written("config.json", lambda path: read_architecture(path.parent)),
    ),
    Reader(
        "generation_config.json",
        json.dumps({"eos_token_id": [1, 2]}).encode(),
        written("generation_config.json", lambda path: end_token_ids(path.parent)),
    ),
    Reader(
        "tokenizer_config.json",
        json.dumps(
            {
                "eos_token": {"content": "</s>"},
                "added_tokens_decoder": {"3": {"content": "</s>"}},
                "chat_template": "x",
            }
        ).encode(),
        written(
            "tokenizer_config.json",
            lambda path: (end_token_ids(path.parent), template_problem(path.parent, template=True)),
        ),
    ),
    Reader("a header of safetensors", WEIGHTS, written("model.safetensors", read_header), is_json=False),
    Reader(
        "shapes of safetensors",
        WEIGHTS,
        written("model.safetensors", lambda path: list(tensor_shapes(path))),
        is_json=False,
    ),
    Reader(
        "an index",
        json.dumps({"weight_map": {"a.weight": "model-1.safetensors", "b": "model-1.safetensors"}}).encode(),
        read_index,
    ),
    Reader(
        "adapter_config.json",
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}).encode(),
        read_adapter,
    ),
    Reader(
        "an FP8 model that is served",
        quantised(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"]),
        read_served,
    ),
    Reader(
        "an INT4 model that is served",
        quantised(
            format="pack-quantized",
            ignore=["lm_head", "re:a.*"],
            **packed(num_bits=4, type="int", symmetric=True, strategy="group"),
        ),
        read_served,
    ),
    Reader("a teacher's tokenizer.json", TOKENIZER, read_teachers_tokens),
    # engines
    Reader(
        "an answer",
        json.dumps([ANSWER]).encode(),
        lambda data, _: parse_generations(data, [REQUEST], ModelLimits(100, 8)),
    ),
    Reader(
        "scores",
        json.dumps([{"meta_info": {"input_token_logprobs": [[None, 5, None], [-0.5, 6, None]]}}]).encode(),
        lambda data, _: parse_scores(data, [np.array([5, 6], np.int32)]),
    ),
    Reader(
        "loads",
        json.dumps({"loads": [{"num_running_reqs": 1, "token_usage": 0.5}]}).encode(),
        of_answer(read_load),
    ),
    Reader(
        "a version",
        json.dumps({"weight_version": "3"}).encode(),
        of_answer(lambda answer: version_number(answer.get("weight_version"))),
    ),
    Reader(
        "frames",
        struct.pack("<QII", 7, 200, 2) + b"[]",
        lambda data, _: list(read_frames(data)),
        is_json=False,
    ),
    Reader(
        "a request",
        json.dumps(
            {"input_ids": [[5, 6]], "rid": ["a"], "sampling_params": [{"max_new_tokens": 4, "stop": ["x"]}]}
        ).encode(),
        read_request,
    ),
    Reader(
        "an update",
        json.dumps({"weight_version": "3", "deltas": [{"since": 2, "files": ["a"]}]}).encode(),
        read_update,
    ),
    Reader(
        "a manifest",
        json.dumps(
            {
                "segment": "rlrun-a",
                "size": 64,
                "version": 1,
                "tensors": [{"name": "a", "dtype": "float32", "shape": [2, 2], "offset": 0}],
            }
        ).encode(),
        lambda data, _: parse_manifest(parse_body(data)),
    ),
    Reader("a delta", delta_file(), written("delta.safetensors", read_delta), is_json=False),
    # services and policies
    Reader("a reward", json.dumps({"score": 0.5, "note": "x"}).encode(), of_json(read_reward)),
    Reader("a tool's answer", json.dumps({"result": "4", "images": []}).encode(), of_json(remote_tool._read)),
    Reader(
        "a call of a tool",
        b'<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        lambda data, _: parse_calls(data.decode("utf-8", "replace"), "auto"),
        is_json=False,
    ),
    Reader(
        "a call of Llama's",
        json.dumps({"name": "add", "parameters": {"a": 1}}).encode(),
        lambda data, _: parse_calls(data.decode("utf-8", "replace"), "llama3"),
    ),
    *(
        Reader(
            f"an agent's request to {wire.path}",
            json.dumps(body).encode(),
            of_json(partial(read_agent_request, wire)),
        )
        for wire, body in zip(WIRES, AGENT_REQUESTS, strict=True)
    ),
    Reader("passages", lines({"text": "one", "title": "a"}), written("corpus.jsonl", read_passages)),
    Reader(
        "an index of passages",
        index_of_passages(),
        written("index.sqlite", read_index_of_passages),
        is_json=False,
    ),
    # specs, scripts and command lines
    Reader(
        "settings of a script",
        b"{tis_mode: clip, use_rs: true, tis_upper_bound: 2.0, defaults: &d {temperature: 0.6}, "
        b"datasets: {held: {path: a.jsonl, top_k: 1}}, sglang: [{name: actor, server_groups: [*d]}]}",
        read_settings,
        is_json=False,
    ),
    Reader(
        "lines to score",
        lines({"id": 1, "response": "x", "label": "1", "prompt": "q", "tokens": 3, "images": {"row": []}}),
        read_scored_lines,
    ),
    Reader(
        "a spec",
        SPEC,
        written("job.toml", lambda path: load_spec([path])),
        is_json=False,
    ),
    Reader(
        "a script",
        SCRIPT,
        written("run.sh", import_script),
        is_json=False,
    ),
    Reader(
        "a script of TRL",
        (Path(__file__).parent / "converters" / "trl" / "vllm_colocate.py").read_bytes(),
        written("train.py", import_trl),
        is_json=False,
    ),
    Reader(
        "a configuration of TRL",
        (Path(__file__).parent / "converters" / "trl" / "grpo.yaml").read_bytes(),
        written("grpo.yaml", import_trl),
        is_json=False,
    ),
    Reader(
        "a script of verl",
        (Path(__file__).parent / "converters" / "verl" / "gspo_megatron.sh").read_bytes(),
        written("run.sh", import_verl),
        is_json=False,
    ),
    Reader(
        "a configuration of verl",
        (Path(__file__).parent / "converters" / "verl" / "ppo.yaml").read_bytes(),
        written("ppo.yaml", import_verl),
        is_json=False,
    ),
    Reader(
        "a configuration of prime-rl",
        (Path(__file__).parent / "converters" / "prime_rl" / "math.toml").read_bytes(),
        written("rl.toml", lambda path: import_prime([path])),
        is_json=False,
    ),
    Reader(
        "a name on the hub",
        b"Qwen/Qwen3-4B",
        lambda data, _: cached_config(data.decode("latin-1")),
        is_json=False,
    ),
]


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_the_example_is_read(reader: Reader, tmp_path: Path) -> None:
    reader.read(reader.example, tmp_path)


@pytest.mark.parametrize("reader", READERS, ids=str)
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_foreign_bytes_are_ours_or_a_result(
    reader: Reader, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("foreign", numbered=True)
    try:
        ours_or_a_result(reader, data.draw(foreign_bytes(reader)), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
