"""A reward model on one rank, held to transformers, and on two ranks in every layout."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.runner.trainer.reward_model_worker import make_pairs, pairs_of
from tests.runner.trainer.trainer_cases import make_rank, make_spec, run_ranks
from tests.tiny_models import make_tiny_model

LAYOUTS = {
    "sharded": {"fsdp": 2},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a head that scores beside that for the vocabulary."""
    path = make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None)
    weights = load_file(path / "model.safetensors")
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    save_file(weights | {"score.weight": head}, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize("share", [False, True])
def test_loss_and_gradient_are_those_of_transformers(folder, share):
    spec = make_spec(folder, algorithm={"type": "bradley_terry"}, share_prefixes=share)
    rank = make_rank(folder, spec)
    sequences = make_pairs()
    (step,) = pairs_of(sequences, spec)
    (metrics,) = rank.policy.train(sequences, [step])
    ours = rank.policy.parameters.masters
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, num_labels=1
    )
    scores = [
        model(input_ids=torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0, 0] for one in sequences
    ]
    margins = torch.stack(scores[::2]) - torch.stack(scores[1::2])
    loss = torch.nn.functional.softplus(-margins).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), spec.trainer.max_grad_norm)
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["train/preferred_frac"] == (margins > 0).float().mean()
    assert "train/entropy" not in metrics
    for name, theirs in (
        ("lm_head.weight", model.score.weight),
        ("layers.0.feed_forward.w1.weight", model.model.layers[0].mlp.gate_proj.weight),
        ("tok_embeddings.weight", model.model.embed_tokens.weight),
    ):
        torch.testing.assert_close(ours[name].grad, theirs.grad, rtol=1e-3, atol=1e-5)
    rank.close()


def test_an_export_scores_as_the_trainer_does_and_can_be_trained_further(folder, tmp_path):
    spec = make_spec(folder, algorithm={"type": "bradley_terry"})
    rank, sequences = make_rank(folder, spec), make_pairs()
    steps = pairs_of(sequences, spec)
    rank.policy.train(sequences, steps)
    rank.export_hf(tmp_path / "model")
    (after,) = rank.policy.train(sequences, steps)
    rank.close()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "model", dtype=torch.float32
    )
    assert type(model).__name__ == model.config.architectures[0] == "Qwen3ForSequenceClassification"
    with torch.no_grad():
        scores = [
            model(torch.from_numpy(one.tokens.astype(np.int64))[None]).logits.item() for one in sequences
        ]
    margins = np.array(scores[::2]) - np.array(scores[1::2])
    assert after["train/reward_margin"] == pytest.approx(margins.mean(), abs=1e-4)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert stored["score.bias"].tolist() == [0]  # SGLang would draw one
    again = make_rank(tmp_path / "model", make_spec(tmp_path / "model", algorithm={"type": "bradley_terry"}))
    (resumed,) = again.policy.train(sequences, steps)
    again.close()
    assert resumed["train/reward_margin"] == pytest.approx(margins.mean(), abs=1e-4)


def test_a_head_starts_at_0_and_one_that_does_not_fit_is_refused(tmp_path):
    path = make_tiny_model(tmp_path / "plain", scale=0.1, pad_token_id=None)
    spec, sequences = make_spec(path, algorithm={"type": "bradley_terry"}), make_pairs()
    rank = make_rank(path, spec)
    (metrics,) = rank.policy.train(sequences, pairs_of(sequences, spec))
    rank.close()
    assert metrics["train/loss"] == pytest.approx(np.log(2))
    weights = load_file(path / "model.safetensors")
    for head, match in (
        ({"score.weight": torch.zeros(2, 64)}, r"score\.weight in .* has shape \(2, 64\), and a head"),
        ({"score.weight": torch.zeros(1, 64), "score.bias": torch.ones(1)}, r"has a score\.bias"),
    ):
        save_file(weights | head, path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=match):
            make_rank(path, spec)


@pytest.fixture(scope="module")
def metrics(folder, tmp_path_factory):
    """The metrics of one rank and of two, by layout."""
    worker, found = Path(__file__).parent / "reward_model_worker.py", {}
    cases = [{"name": name, "folder": str(folder), "parallel": layout} for name, layout in LAYOUTS.items()]
    for size in (1, 2):
        out = tmp_path_factory.mktemp(f"ranks-{size}")
        run_ranks(worker, size, cases, out)
        found[size] = json.loads((out / "0.json").read_text())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_train_as_one_does(metrics, layout):
    for alone, together in zip(metrics[1][layout], metrics[2][layout], strict=True):
        assert together == pytest.approx(alone, rel=1e-3, abs=1e-5)
