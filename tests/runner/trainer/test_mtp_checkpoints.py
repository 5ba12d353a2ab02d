"""Checkpoints, exports and updates of a policy with an MTP layer."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rlrun.models.config_json import read_architecture, with_mtp_layer
from rlrun.models.tensor_names import mtp_tensors
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.rank_share import largest_share
from rlrun.runner.planning.served_weights import served_weight_bytes
from rlrun.runner.weights.carriers.native.shared_memory import attach
from rlrun.specs.sections.engine import SpeculativeSpec
from rlrun.specs.sections.trainer import ParallelSpec
from tests.converters.conversions import convert
from tests.mtp_models import make_mtp_model
from tests.resolved_specs import resolved_engine
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan

FAMILIES = ("mimo", "glm4_moe", "deepseek_v3")


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tmp_path_factory):
    """A run's folder after an optimizer step: its model, its checkpoint, its export."""
    root = tmp_path_factory.mktemp(request.param)
    make_mtp_model(root / "source", request.param)
    rank = make_rank(root / "source", make_spec(root / "source", mtp_loss=0.3))
    sequences = make_sequences()
    rank.policy.train(sequences, plan(sequences, make_spec(root / "source")))
    rank.save(root / "checkpoints" / "step-1" / "trainer")
    rank.export_hf(root / "model")
    (root / "spec.lock.json").write_text(json.dumps({"model": {"folder": str(root / "source")}}))
    yield root, rank
    rank.close()


def names_of(root):
    return {tensor.name for tensor in mtp_tensors(with_mtp_layer(read_architecture(root / "source")))}


def test_an_export_has_the_trained_layer(trained):
    root, _ = trained
    before, after = (load_file(root / name / "model.safetensors") for name in ("source", "model"))
    assert before.keys() == after.keys()
    moved = {name for name in names_of(root) if not torch.equal(before[name], after[name])}
    still = names_of(root) - moved
    assert all(".mlp.experts." in name or name.endswith("correction_bias") for name in still)


def test_a_converted_checkpoint_is_the_export(trained, tmp_path):
    root, _ = trained
    convert(root, "hf", tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    exported = load_file(root / "model" / "model.safetensors")
    assert converted.keys() == exported.keys()
    assert all(torch.equal(converted[name], exported[name]) for name in exported)


def test_a_resumed_run_takes_the_same_step(trained):
    root, rank = trained
    sequences, spec = make_sequences(seed=1), make_spec(root / "source", mtp_loss=0.3)
    other = make_rank(root / "source", spec)
    other.load(root / "checkpoints" / "step-1" / "trainer")
    rank.load(root / "checkpoints" / "step-1" / "trainer")
    for each in (rank, other):
        each.policy.train(sequences, plan(sequences, spec))
    pairs = zip(rank.policy.parameters.gather(), other.policy.parameters.gather(), strict=True)
    assert all(torch.equal(ours[1], theirs[1]) for ours, theirs in pairs)
    other.close()


@pytest.mark.parametrize(("saved", "loaded"), [(0.3, 0.0), (0.0, 0.3)])
def test_a_checkpoint_with_and_one_without_the_layer_are_not_exchanged(saved, loaded, tmp_path):
    folder = make_mtp_model(tmp_path / "model", "mimo")
    first = make_rank(folder, make_spec(folder, mtp_loss=saved))
    first.save(tmp_path / "checkpoint")
    first.close()
    second = make_rank(folder, make_spec(folder, mtp_loss=loaded))
    with pytest.raises(ValueError, match=f"with{'' if saved else 'out'} trainer.mtp_loss"):
        second.load(tmp_path / "checkpoint")
    second.close()


def test_native_engines_get_the_policy_alone(trained):
    root, rank = trained
    sent = attach(rank.write_weights(1))
    assert sent.tensors.keys() == load_file(root / "source" / "model.safetensors").keys() - names_of(root)
    sent.close()


def test_the_plan_counts_the_layer(trained):
    root, _ = trained
    model = read_architecture(root / "source")
    with_layer = with_mtp_layer(model)
    further = sum(tensor.numel() for tensor in _tensors(root))
    assert parameter_count(with_layer) == parameter_count(model) + further
    alone, both = (largest_share(each, ParallelSpec(fsdp=2)) for each in (model, with_layer))
    assert both.layers == alone.layers + 1
    assert both.parameters == pytest.approx(alone.parameters + further / 2, abs=len(names_of(root)))
    drafts = resolved_engine(type="sglang", speculative=SpeculativeSpec(algorithm="mtp"))
    assert served_weight_bytes(with_layer, drafts)[0] == 2 * parameter_count(with_layer)
    assert served_weight_bytes(with_layer, resolved_engine())[0] == 2 * parameter_count(model)


def _tensors(root):
    stored = load_file(root / "source" / "model.safetensors")
    return [stored[name] for name in names_of(root)]
