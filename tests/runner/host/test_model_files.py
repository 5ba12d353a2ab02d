"""A model's files are looked at before anything is started."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.models.config_json import architecture
from rlrun.runner.host.model_files import ModelFiles, check_weights
from rlrun.runner.prompts.end_tokens import declared_end_tokens
from rlrun.specs.sections.model import ModelSpec
from tests.tiny_models import make_tiny_model


def set_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def other_format(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 4200000\n")


def index_of_a_lost_file(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (cut_off, r"model\.safetensors cannot be read: .*may be truncated.*; download or copy it again"),
        (pointer, r"model\.safetensors cannot be read: .*; download or copy it again"),
        (other_format, r"has no model\.safetensors and no .*index\.json; give a folder with safetensors"),
        (index_of_a_lost_file, r"model-00002-of-00002\.safetensors"),
        (lambda folder: set_config(folder, model_type="bert"), "model_type 'bert' is not supported"),
        (lambda folder: set_config(folder, hidden_size=None), r"config\.json"),
        (lambda folder: set_config(folder, num_hidden_layers=9), "lacks .*, which its config.json requires"),
        (lambda folder: set_config(folder, num_hidden_layers=1), "which its config.json does not describe"),
        (lambda folder: set_config(folder, vocab_size=77), "has shape .*, but its config.json requires"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(
    tmp_path: Path, harm: Callable[[Path], None], told: str
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    check_weights(ModelSpec(path=str(folder)), folder)
    harm(folder)
    with pytest.raises(ValueError, match=told) as caught:
        check_weights(ModelSpec(path=str(folder)), folder)
    assert str(folder) in str(caught.value) or "model_type" in str(caught.value)


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    check_weights(ModelSpec(path=str(folder), random_init=True), folder)


def test_what_a_config_leaves_out_is_what_its_family_has(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 7}')
    config = ModelFiles(tmp_path, None).config()
    assert (config["vocab_size"], config["max_position_embeddings"]) == (7, 32768)


def test_the_sizes_of_a_text_model_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    text: dict[str, object] = {
        "model_type": "qwen3_5_text",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 32,
    }
    text |= {"num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 99}
    written = {"model_type": "qwen3_5", "text_config": text | {"eos_token_id": 7}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = ModelFiles(tmp_path, None).config()
    assert (config["model_type"], config["vocab_size"], config["max_position_embeddings"]) == (
        "qwen3_5",
        32,
        99,
    )
    assert architecture(config) == architecture(written)
    assert declared_end_tokens(tmp_path) == [7]
