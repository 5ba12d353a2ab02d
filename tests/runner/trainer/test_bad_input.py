"""Input that a trainer cannot use is an error before any step, and nothing is overwritten.

A checkpoint of another model, and a loss or gradient that is not finite: test_rank.py.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rlrun.models.config_json import read_architecture
from rlrun.runner.planning.rank_layout import check_layout
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("non_finite_worker.py")
FOLLOWING = {"type": "grpo", "kl": {"in_loss": {"type": "k3", "coef": 0.1}}}
"""With a reference, which `update_interval` makes part of checkpoints."""


@pytest.fixture
def folder(tmp_path):
    return make_tiny_model(tmp_path / "model", scale=0.1, pad_token_id=None)


@pytest.fixture
def rank(folder):
    made = make_rank(folder, make_spec(folder))
    yield made
    made.close()


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fewer_layers(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))


def narrower(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))


def without_a_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def without_a_shard(folder):
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    shards["model.norm.weight"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (fewer_layers, r"has model\.layers\.1\..*config\.json does not describe"),
        (narrower, r"mlp\..* has shape \(.*96.*\), but its config\.json requires \(.*48.*\)"),
        (without_a_tensor, r"lacks model\.norm\.weight"),
        (without_a_shard, r"lacks model-00002-of-00002\.safetensors"),
    ],
)
def test_a_model_that_does_not_fit_its_config_is_refused(folder, spoil, message):
    spoil(folder)
    before = bytes_of(folder)
    with pytest.raises(ValueError, match=message):
        make_rank(folder, make_spec(folder))
    assert bytes_of(folder) == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("gone", r"step lacks __0_0\.distcp; delete that"),
        ("cut short", r"step is damaged, perhaps cut short \(EOF"),
    ],
)
def test_a_checkpoint_without_all_its_shards_is_refused(rank, tmp_path, spoil, message):
    rank.save(tmp_path / "step")
    shard = next((tmp_path / "step").glob("*.distcp"))
    if spoil == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:1000])
    before = bytes_of(tmp_path / "step")
    with pytest.raises(ValueError, match=message):
        rank.load(tmp_path / "step")
    assert bytes_of(tmp_path / "step") == before


def test_a_checkpoint_without_the_critic_is_refused(rank, folder, tmp_path):
    sequences = make_sequences()
    rank.policy.train(sequences, plan(sequences, make_spec(folder)))
    rank.save(tmp_path / "step")
    actor_critic = make_rank(folder, make_spec(folder, algorithm={"type": "ppo"}))
    with pytest.raises(ValueError, match=r"critic is not a complete checkpoint"):
        actor_critic.load(tmp_path / "step")
    actor_critic.close()


def test_a_reference_of_another_model_is_refused(tmp_path, folder):
    folders = folder, make_tiny_model(tmp_path / "other", hidden_size=32)
    ranks = []
    for number, model in enumerate(folders):
        spec = make_spec(model, algorithm=FOLLOWING)
        spec = type(spec).model_validate(spec.model_dump() | {"reference": {"update_interval": 1}})
        ranks.append(make_rank(model, spec))
        ranks[-1].save(tmp_path / f"{number}")
    shutil.rmtree(tmp_path / "0" / "reference")
    shutil.copytree(tmp_path / "1" / "reference", tmp_path / "0" / "reference")
    with pytest.raises(ValueError, match=r"reference is of another model: .* has shape"):
        ranks[0].load(tmp_path / "0")
    for rank in ranks:
        rank.close()


@pytest.mark.slow
def test_what_is_not_finite_on_one_rank_stops_all_before_the_weights(folder, tmp_path):
    layouts = [{"fsdp": 2}, {"tensor": 2}, {"context": 2}, {"pipeline": 2}]
    run_ranks(WORKER, 2, [str(folder), layouts], tmp_path)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"tensor": 3}, "tensor = 3 does not divide num_attention_heads = 4"),
        ({"tensor": 4}, "tensor = 4 does not divide num_key_value_heads = 2"),
        ({"pipeline": 3}, "pipeline = 3 with .*1F1B.* at least 3 layers, and the model has 2"),
        ({"pipeline": 2, "pipeline_schedule": "DualPipeV"}, "at least 4 layers, and the model has 2"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(folder, parallel, message):
    with pytest.raises(ValueError, match=message):
        check_layout(read_architecture(folder), ParallelSpec(**parallel))


def test_experts_that_do_not_divide_are_refused(tmp_path):
    folder = make_tiny_model(tmp_path / "experts", "qwen3_moe")
    with pytest.raises(ValueError, match=r"expert = 3 does not divide \d+ experts"):
        check_layout(read_architecture(folder), ParallelSpec(fsdp=3, expert=3))
