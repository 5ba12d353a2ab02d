"""What the native engine reads from a model folder, against transformers."""

import json
from pathlib import Path

import pytest

from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SamplingParams
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model.config import FAMILIES, engine_architecture
from tests.tiny_models import CONFIGS, END_ID, PAD_ID, make_tiny_model

SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}


def read(folder: Path, config: dict[str, object]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    return engine_architecture(folder)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family in CONFIGS])
def test_an_absent_key_has_the_default_of_transformers(family: str, tmp_path: Path) -> None:
    whole = json.loads((make_tiny_model(tmp_path, family) / "config.json").read_text())
    if "linear_num_value_heads" in whole:
        whole["linear_num_value_heads"] = 32  # divisible by the default number of key heads
    if "index_head_dim" in whole:
        whole["index_head_dim"] = 64  # as wide as the default of the part that is rotated
    for key in whole.keys() - SIZES - {"model_type", "transformers_version", "eos_token_id"}:
        partial = {name: value for name, value in whole.items() if name != key}
        theirs = CONFIGS[family].from_dict(partial).to_dict()
        assert read(tmp_path, partial) == read(tmp_path, theirs), key


def test_the_tokenizer_s_own_end_token_ends_a_sample(tmp_path: Path) -> None:
    """Instruction tuning often changes it there alone."""
    folder = make_tiny_model(tmp_path, eos_token_id=PAD_ID)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == PAD_ID
    stops = load(EngineSetup(str(folder), dtype="float32")).stops.tokens
    row = stops.index(SamplingParams())
    assert stops.table[row].nonzero()[0].tolist() == [PAD_ID, END_ID]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model_type": "bloom"},
            r"the native engine does not run model_type 'bloom' \(docs/families.md\)",
        ),
        ({"partial_rotary_factor": 0.5}, "the native engine cannot run .*partial_rotary_factor"),
        ({"use_sliding_window": True}, "the native engine cannot run .*use_sliding_window = true"),
        ({"hidden_act": "gelu"}, "the native engine cannot run .*hidden_act 'gelu'"),
    ],
    ids=["family", "partial-rotation", "window", "activation"],
)
def test_models_that_the_engine_does_not_compute_are_refused(
    keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    whole = json.loads((make_tiny_model(tmp_path) / "config.json").read_text())
    with pytest.raises(ValueError, match=message):
        read(tmp_path, whole | keys)
