"""A bias by expert evens loads out, is part of checkpoints, and leaves the trainer only where it may."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.model.expert_load import bias_change
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("balancing_worker.py")
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
WITH_REFERENCE = {"type": "grpo", "kl": {"in_loss": {"type": "low_var_kl", "coef": 0.1}}}
LAYOUTS = [
    {"fsdp": 2, "expert": 2},
    {"tensor": 2, "expert": 2},
    {"context": 2},
    {"pipeline": 2},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    qwen = {"num_experts": 8, "mlp_only_layers": [0], "num_hidden_layers": 3}
    return {
        "qwen": make_tiny_model(root / "qwen", "qwen3_moe", scale=0.1, pad_token_id=None, **qwen),
        "deepseek": make_tiny_model(root / "deepseek", "deepseek_v3", scale=0.1, pad_token_id=None),
    }


@pytest.fixture
def start():
    """Makes ranks whose learning rate is so small that weights hardly change, and closes them afterwards."""
    ranks = []

    def make(folder, algorithm=None, rate=0.01, **settings):
        moe = {"balancing": "bias", "balancing_rate": rate} if rate else {}
        export = {"balancing_export": settings.pop("export")} if "export" in settings else {}
        ranks.append(make_rank(folder, spec_of(folder, algorithm=algorithm, moe=moe | export, **settings)))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.close()


def spec_of(folder, parallel=None, **trainer):
    return make_spec(folder, parallel, **{"lr": 1e-9, "weight_decay": 0.0} | trainer)


def stepped(rank, steps=1):
    """Metrics of each of as many optimizer steps on the same samples."""
    sequences = make_sequences()
    return [rank.policy.train(sequences, plan(sequences, rank._spec))[0] for _ in range(steps)]


def biases(rank):
    """A copy of each layer's, by number."""
    blocks = [each for decoder in rank.policy.model.decoders for each in decoder.layers.items()]
    return {int(name): block.moe.expert_bias_E.clone() for name, block in blocks if block.moe_enabled}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("counts", "change"),
    [
        ([2, 2, 2], [0.0, 0.0, 0.0]),
        ([4, 0, 2, 2], [-0.3, 0.3, 0.0, 0.0]),
        ([6, 0, 0], [-0.4, 0.2, 0.2]),
        ([0, 0], [0.0, 0.0]),
    ],
)
def test_a_bias_moves_by_a_step_towards_an_even_load(counts, change):
    found = bias_change(torch.tensor(counts), 0.3)
    torch.testing.assert_close(found, torch.tensor(change))


@pytest.mark.parametrize("family", ["qwen", "deepseek"])
def test_loads_even_out(folders, start, family):
    first, *_, last = stepped(start(folders[family]), steps=25)
    for end in ("max", "min"):
        before, after = (abs(metrics[f"train/expert_load_{end}"] - 1) for metrics in (first, last))
        assert after < 0.6 * before


def test_without_it_nothing_moves(folders, start):
    rank = start(folders["deepseek"], rate=None)
    before = biases(rank)
    stepped(rank)
    assert same(biases(rank), before)


def test_a_resumed_run_has_the_bias_and_goes_on_bit_for_bit(folders, start, tmp_path):
    rank = start(folders["qwen"])
    stepped(rank, 3)
    rank.save(tmp_path / "step")
    saved = biases(rank)
    resumed = start(folders["qwen"])
    resumed.load(tmp_path / "step")
    assert same(biases(resumed), saved)
    assert any(bias.any() for bias in saved.values())
    ours, theirs = (stepped(one, 3)[-1]["train/loss"] for one in (resumed, rank))
    assert ours == theirs
    assert same(biases(resumed), biases(rank))


@pytest.mark.parametrize(("rates", "was"), [((0.01, None), "bias"), ((None, 0.01), "off")])
def test_a_checkpoint_of_the_other_setting_is_refused(folders, start, tmp_path, rates, was):
    before, now = (start(folders["qwen"], rate=rate) for rate in rates)
    before.save(tmp_path / "step")
    with pytest.raises(ValueError, match=f'saved with trainer.moe.balancing = "{was}"'):
        now.load(tmp_path / "step")


@pytest.mark.parametrize("export", [True, False])
def test_it_is_exported_where_checkpoints_have_a_place_and_it_is_wanted(folders, start, tmp_path, export):
    rank = start(folders["deepseek"], export=export)
    stepped(rank)
    rank.export_hf(tmp_path / "export")
    found, source = (
        load_file(folder / "model.safetensors")[BIAS] for folder in (tmp_path / "export", folders["deepseek"])
    )
    own = biases(rank)[1]
    assert not torch.equal(own, source)
    assert torch.equal(found, own if export else source)
    assert torch.equal(dict(rank.policy.parameters.gather())[BIAS], found)  # what engines get


def test_it_stays_in_the_trainer_where_checkpoints_have_no_place(folders, start, tmp_path):
    rank = start(folders["qwen"])
    stepped(rank)
    rank.export_hf(tmp_path / "export")
    names = [
        load_file(folder / "model.safetensors").keys() for folder in (tmp_path / "export", folders["qwen"])
    ]
    assert names[0] == names[1]
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config == json.loads((folders["qwen"] / "config.json").read_text())


def test_the_reference_keeps_the_bias_that_it_had(folders, start):
    rank = start(folders["deepseek"], WITH_REFERENCE, rate=0.5)
    sequences = make_sequences()
    batches = all_micro_batches(plan(sequences, rank._spec))
    before = rank.reference.log_probs(sequences, batches)
    known = [dataclasses.replace(one, reference_log_probs=before[i]) for i, one in enumerate(sequences)]
    rank.policy.train(known, plan(known, rank._spec))
    after, policy = rank.reference.log_probs(sequences, batches), rank.policy.log_probs(sequences, batches)
    for i, values in before.items():
        np.testing.assert_array_equal(after[i], values)
    assert max(np.abs(policy[i] - before[i]).max() for i in before) > 1e-3


def test_a_step_that_is_left_out_moves_nothing(folders, start):
    rank = start(folders["qwen"], non_finite="skip")
    first, *others = make_sequences()
    sequences = [dataclasses.replace(first, advantages=np.full_like(first.advantages, np.nan)), *others]
    (metrics,) = rank.policy.train(sequences, plan(sequences, rank._spec))
    assert metrics["train/skipped_steps"] == 1
    assert not any(bias.any() for bias in biases(rank).values())


def test_layers_with_a_frozen_router_keep_theirs(folders, start):
    rank = start(folders["qwen"], freeze=["model.layers.1.mlp.gate.weight"])
    stepped(rank)
    found = biases(rank)
    assert not found[1].any() and found[2].any()


def test_it_is_the_same_on_every_layout(folders, tmp_path):
    """Tokens that fill a pack up do not count, and each rank knows what all of them counted."""
    spec = spec_of(folders["qwen"], moe={"balancing": "bias"})
    rank = make_rank(folders["qwen"], spec)
    stepped(rank, 2)
    rank.save(tmp_path / "step")
    saved = biases(rank)
    stepped(rank, 2)
    torch.save((saved, biases(rank)), tmp_path / "expected.pt")
    rank.close()
    run_ranks(WORKER, 2, [str(folders["qwen"]), str(tmp_path), LAYOUTS], tmp_path)
