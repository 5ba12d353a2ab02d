"""`rlrun convert`: the command's own part; the conversions are tested in tests/converters."""

import json

import pytest
from safetensors.torch import load_file, save_file

from rlrun.cli.convert.options import parse_bytes
from tests.tiny_models import make_tiny_model


@pytest.fixture
def model(tmp_path):
    return make_tiny_model(tmp_path / "model")


def test_there_and_back_and_what_differs(rlrun, model, tmp_path):
    there = rlrun("convert", "hf-to-dcp", model, tmp_path / "dcp", "--verify", "--shard-size", "100kB")
    assert there.code == 0 and "25 tensors" in there.out and "read back and compared: equal" in there.out
    back = rlrun("convert", tmp_path / "dcp", tmp_path / "back")
    assert back.code == 0 and f"wrote {tmp_path / 'back'}" in back.out
    assert (
        rlrun("convert", "inspect", model, "--diff", tmp_path / "back").out
        == "25 tensors equal, 0 different\n"
    )
    assert rlrun("convert", "inspect", model, "--diff", tmp_path / "dcp").code == 0


def test_inspect(rlrun, model):
    shown = rlrun("convert", "inspect", model)
    assert "family      qwen3\n" in shown.out and "model.layers.*.mlp.up_proj.weight" in shown.out
    described = json.loads(rlrun("convert", "inspect", model, "--json").out)
    assert described["parameters"] == sum(
        tensor.numel() for tensor in load_file(model / "model.safetensors").values()
    )
    assert described["dtypes"] == {"float32": described["parameters"]}


def test_differences_are_told(rlrun, model, tmp_path):
    other = make_tiny_model(tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.5
    tensors["more"] = tensors.pop("lm_head.weight")
    save_file(tensors, other / "model.safetensors")
    result = rlrun("convert", "inspect", model, "--diff", other)
    assert result.code == 1 and "23 tensors equal, 3 different" in result.out
    rows = {
        row["name"]: row
        for row in json.loads(rlrun("convert", "inspect", model, "--diff", other, "--json").out)
    }
    assert rows["model.norm.weight"]["largest"] == pytest.approx(0.5)
    assert rows["model.norm.weight"]["changed"] == 1 / 64
    assert rows["more"]["note"] == f"only in {other}" and rows["lm_head.weight"]["note"] == f"only in {model}"


def test_a_dry_run_writes_nothing(rlrun, model, tmp_path):
    result = rlrun("convert", "hf-to-hf", model, tmp_path / "out", "--dtype", "bfloat16", "--dry-run")
    assert result.code == 0 and "model.norm.weight  bfloat16 [64]" in result.out
    assert not (tmp_path / "out").exists()


def make_run(rlrun, model, tmp_path, steps):
    run = tmp_path / "runs" / "tiny"
    for step in steps:
        rlrun("convert", "hf-to-dcp", model, run / "checkpoints" / f"step-{step}" / "trainer")
        for path in (run / "checkpoints" / f"step-{step}" / "trainer").glob("*.json"):
            path.unlink()
    (run / "spec.lock.json").write_text(json.dumps({"model": {"folder": str(model)}}))
    (run / "checkpoints" / ".step-9.tmp" / "trainer").mkdir(parents=True)
    return run


def test_a_run_is_a_source(rlrun, model, tmp_path):
    run = make_run(rlrun, model, tmp_path, [2, 10])
    for number, (path, step) in enumerate(
        [(run, 10), (run / "checkpoints", 10), (run / "checkpoints/step-2", 2)]
    ):
        result = rlrun("convert", "dcp-to-hf", path, tmp_path / f"out-{number}")
        assert result.code == 0 and f"step {step}\n" in result.out
        assert (tmp_path / f"out-{number}" / "tokenizer.json").exists()
    assert "step        2\n" in rlrun("convert", "inspect", run, "--step", "2").out
    assert rlrun("convert", run, tmp_path / "out", "--step", "latest").code == 0
    wrong = rlrun("convert", run, tmp_path / "other", "--step", "7")
    assert wrong.code == 2 and "has no step 7; its complete steps are 2, 10" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf-to-dcp", "MODEL", "OUT", "--quantize", "fp8-block"], "cannot be quantised"),
        (["hf-to-dcp", "MODEL", "OUT", "--to", "hf"], "hf-to-dcp already determines both formats"),
        (["dcp-to-hf", "MODEL", "OUT"], "is in format hf, not dcp"),
        (["MODEL", "OUT", "--from", "dcp"], "is in format hf, not dcp"),
        (["MODEL", "OUT", "--step", "3"], "it is not a run's folder"),
        (["MODEL", "OUT", "--to", "dcp", "--push", "a/b"], "--push only uploads Hugging Face folders"),
        (["MODEL", "OUT", "--optimizer"], "remove --optimizer"),
        (["MODEL", "OUT", "--memory", "much"], "'much' is not a size"),
        (["MODEL", "OUT", "--memory", "1MB"], "--memory must be at least"),
        (["MODEL", "OUT", "--revision", "main"], "--revision is only for models on the hub"),
        (["MODEL", "MODEL"], "already exists and is not overwritten"),
        (["OUT", "MODEL"], "there is no folder"),
        (["EMPTY", "OUT"], "is not a checkpoint: it has neither safetensors"),
    ],
)
def test_what_cannot_be_done(arguments, message, rlrun, model, tmp_path):
    (tmp_path / "empty").mkdir()
    places = {"MODEL": model, "OUT": tmp_path / "out", "EMPTY": tmp_path / "empty"}
    result = rlrun("convert", *(places.get(argument, argument) for argument in arguments))
    assert result.code == 2 and message in result.err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_an_unknown_model(rlrun, model, tmp_path):
    rlrun("convert", "hf-to-dcp", model, tmp_path / "dcp")
    (tmp_path / "dcp" / "config.json").unlink()
    result = rlrun("convert", tmp_path / "dcp", tmp_path / "out")
    assert result.code == 2 and "does not record its model: add --model" in result.err
    assert rlrun("convert", tmp_path / "dcp", tmp_path / "out", "--model", model).code == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("4GiB", 4 << 30), ("1.5M", 1_500_000), ("123", 123), ("2 kib", 2048)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "0", "5 G B"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size: write it as in 5GB"):
        parse_bytes(text)
