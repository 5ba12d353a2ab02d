"""What the trainer's ranks wrote together becomes the same Hugging Face folder as their own export."""

import json
import shutil

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from rlrun.converters.convert.conversion import Options, plan_conversion
from rlrun.converters.convert.describe import describe
from rlrun.converters.families.adapter_folder import write_adapter
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.locate import find_checkpoint
from rlrun.converters.tensors.base_blocks import decode, encode
from rlrun.converters.tensors.precision import keeps_precision
from rlrun.models.adapters import EXPERT_TARGETS, LoraShape, adapter_tensors, adapters
from rlrun.models.config_json import read_architecture
from tests.converters.conversions import EFFORT, convert, ignore, read_hf, same
from tests.converters.trainer_process import save_on_ranks
from tests.tiny_models import make_tiny_model
from tests.tiny_vlms import make_tiny_vlm

MODELS = {
    "qwen3": {"family": "qwen3"},
    "tied": {"family": "qwen3", "tied": True},
    "llama": {"family": "llama"},
    "moe": {"family": "qwen3_moe"},
    "moe on expert-parallel ranks": {"family": "qwen3_moe"},
    "deepseek": {"family": "deepseek_v3"},
    "gpt-oss": {"family": "gpt_oss"},
    "Gated DeltaNet": {"family": "qwen3_5_moe_text"},
    "adapters": {"family": "qwen3"},
    "adapters beside 4 bits": {"family": "qwen3", "head_dim": 32, "intermediate_size": 256},
    "adapters of experts": {"family": "qwen3_moe"},
    "gpt-oss on expert-parallel ranks": {"family": "gpt_oss"},
    "a trained vision tower": {"family": "qwen2_5_vl"},
    "a frozen vision tower": {"family": "qwen3_vl"},
    "a vision tower that is not loaded": {"family": "qwen3_5"},
    "a trained vision tower and experts": {"family": "qwen3_5_moe"},
}
SLOW = (
    "llama",
    "gpt-oss on expert-parallel ranks",
    "adapters beside 4 bits",
    "a frozen vision tower",
)
"""Each has its parts from two others: a family or a form, and a layout."""
TOWERS = {
    "a trained vision tower": "trained",
    "a frozen vision tower": "frozen",
    "a vision tower that is not loaded": "none",
    "a trained vision tower and experts": "trained",
}
LORA = {
    "adapters": LoraShape(rank=4, alpha=6),
    "adapters beside 4 bits": LoraShape(rank=4, alpha=6),
    "adapters of experts": LoraShape(rank=4, alpha=6, targets=("o_proj", *EXPERT_TARGETS)),
}
SHARDED, EXPERTS, DATA = {"fsdp": 2, "tensor": 2}, {"fsdp": 4, "expert": 2}, {"fsdp": 2, "replicate": 2}


def make_adapter(model, lora):
    """A folder of adapters whose product is not zero, for a model's folder."""
    matrices, numbers = adapters(read_architecture(model), lora), torch.Generator().manual_seed(0)
    factors = {
        tensor.name: torch.randn(tensor.shape, generator=numbers) for tensor in adapter_tensors(matrices)
    }
    write_adapter(model / "adapter", str(model), matrices, lora, factors.items())
    return model / "adapter"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Float32 weights of models whose config says bfloat16: exporting must round them.

    Slow ones only where a test of them is chosen.
    """
    root, cases = tmp_path_factory.mktemp("runs"), []
    chosen = [item for item in request.session.items if item.path == request.path]
    tested = {item.callspec.params["name"] for item in chosen if hasattr(item, "callspec")}
    for name in [name for name in MODELS if name in tested or name not in SLOW]:
        model = MODELS[name]
        make = make_tiny_vlm if name in TOWERS else make_tiny_model
        folder = make(root / "models" / name, **model)
        config = json.loads((folder / "config.json").read_text())
        config.get("text_config", config)["dtype"] = "bfloat16"
        (folder / "config.json").write_text(json.dumps(config))
        run = root / name
        run.mkdir()
        (run / "spec.lock.json").write_text(json.dumps({"model": {"folder": str(folder)}}))
        layout = EXPERTS if "expert" in name else DATA if name in TOWERS else SHARDED
        case = {"model": str(folder), "run": str(run), "parallel": layout, "tower": TOWERS.get(name)}
        if lora := LORA.get(name):
            settings = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets or None}
            settings["base"] = "nf4" if "4 bits" in name else None
            case |= {"lora": settings, "adapter": str(make_adapter(folder, lora))}
        cases.append(case)
    save_on_ranks(4, cases)
    return root


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MODELS]
)
def test_a_sharded_checkpoint_is_what_the_trainer_exports(name, runs, tmp_path):
    run = runs / name
    out = convert(run, "hf", tmp_path / "out")
    source = read_hf(runs / "models" / name)
    if name in LORA and "4 bits" not in name:
        merged = read_hf(
            convert(runs / "models" / name, "hf", tmp_path / "merged", adapter=run / "model" / "adapter")
        )
        assert not same(source, merged)
        source = merged
    if "4 bits" in name:
        source = merged_beside_4_bits(source, run / "model" / "adapter")
    rounded = {
        name: tensor if keeps_precision(name) else tensor.bfloat16() for name, tensor in source.items()
    }
    assert same(rounded, read_hf(out))
    assert any("visual." in tensor for tensor in rounded) == (name in TOWERS)
    exported = {path.name: path.read_bytes() for path in (run / "model").iterdir() if path.is_file()}
    assert exported == {path.name: path.read_bytes() for path in out.iterdir()}


def merged_beside_4_bits(weights, adapter):
    """Weights whose matrices have passed through 4 bits, with adapters merged."""
    factors = load_file(adapter / "adapter_model.safetensors")
    merged = dict(weights)
    for name, down in factors.items():
        if ".lora_A." in name:
            weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            matrix = decode(encode(weights[weight], "nf4"), "nf4")
            merged[weight] = torch.addmm(
                matrix,
                factors[name.replace(".lora_A.", ".lora_B.")],
                down,
                alpha=LORA["adapters beside 4 bits"].scale,
            )
            assert not torch.equal(matrix, weights[weight])
    return merged


@pytest.mark.parametrize("name", ["adapters", "adapters of experts"])
def test_peft_loads_exported_adapters(name, runs):
    model, folder = runs / "models" / name, runs / name / "model" / "adapter"
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, folder)
    loaded, stored = peft.get_peft_model_state_dict(adapted), load_file(folder / "adapter_model.safetensors")
    given = load_file(model / "adapter" / "adapter_model.safetensors")
    assert same(loaded, stored) and same(stored, given)
    adapted.merge_and_unload().save_pretrained(runs / f"{name} by peft")
    merged, exported = read_hf(runs / f"{name} by peft"), read_hf(runs / name / "model")
    assert all(torch.allclose(merged[name], exported[name].float(), rtol=1e-2) for name in exported)


def test_a_checkpoint_of_adapters_needs_its_model_and_has_no_optimizer_of_weights(runs, tmp_path):
    with pytest.raises(ValueError, match="optimizer's state of adapters"):
        convert(runs / "adapters", "hf", tmp_path / "out", optimizer=True)
    bare = tmp_path / "model"
    bare.mkdir()
    shutil.copy(runs / "models" / "adapters" / "config.json", bare)
    with pytest.raises(ValueError, match="has only adapters: add --model"):
        convert(runs / "adapters", "hf", tmp_path / "out", model=bare)


def test_it_is_in_parts(runs):
    found = find_checkpoint(runs / "moe")
    folder = DcpFolder(found.folder)
    assert folder.num_chunks("parameters.layers.0.attention.wo.weight") == 4
    description = describe(found)
    assert description.step == 3 and description.family == "qwen3_moe"
    assert description.parameters == sum(
        tensor.numel() for tensor in read_hf(runs / "models" / "moe").values()
    )


def test_the_optimizer_s_state_can_be_kept(runs, tmp_path):
    out = convert(runs / "moe", "hf", tmp_path / "out", optimizer=True)
    weights, moments = read_hf(out), read_hf(out / "optimizer")
    assert {name.partition(".")[0] for name in moments} == {"exp_avg", "exp_avg_sq"}
    assert {name.partition(".")[2] for name in moments} == weights.keys()
    assert all(tensor.dtype == torch.float32 for tensor in moments.values())


def test_a_running_job_may_remove_what_is_being_read(runs, tmp_path):
    run = shutil.copytree(runs / "qwen3", tmp_path / "run")
    conversion = plan_conversion(find_checkpoint(run), "hf", Options())
    shutil.rmtree(run)
    conversion.write(tmp_path / "out", EFFORT, ignore, None)
    assert same(read_hf(runs / "qwen3" / "model"), read_hf(tmp_path / "out"))
