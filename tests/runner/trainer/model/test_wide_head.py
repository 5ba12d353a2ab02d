"""`trainer.head_dtype = "float32"`: the head of a bfloat16 model computes in float32, on every layout."""

import json
from pathlib import Path

import pytest
import torch

from rlrun.runner.trainer.model.head import HeadQuery, ResponseHead, split_in_two
from tests.runner.trainer.model.wide_head_worker import measure
from tests.runner.trainer.trainer_cases import MODELS, run_ranks
from tests.tiny_models import make_tiny_model

TOKENS, HIDDEN, VOCABULARY = 24, 32, 50
ROUNDING = 2.0**-8
"""The largest relative error of a number that is rounded to bfloat16."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    names = ("qwen3", "qwen3-tied", "mistral")
    return {
        name: make_tiny_model(root / name, pad_token_id=None, scale=0.3, **MODELS[name]) for name in names
    }


def head_and_reference(*, entropy_grad):
    """Values and gradients of a wide bfloat16 head, and of the same numbers in float32 with autograd."""
    torch.manual_seed(0)
    config = ResponseHead.Config(in_features=HIDDEN, out_features=VOCABULARY, wide=True)
    head = ResponseHead(config).to(torch.bfloat16)
    hidden = (3 * torch.randn(1, TOKENS, HIDDEN)).bfloat16().requires_grad_()
    rows, targets = torch.arange(1, TOKENS), torch.randint(VOCABULARY, (TOKENS - 1,))
    head.query = HeadQuery(rows, targets, 0.7, 5, entropy_grad)
    output_gradients = torch.randn(2, TOKENS - 1)
    found = head(hidden)
    wide_hidden, weight = (each.detach().float().requires_grad_() for each in (hidden, head.weight))
    everything = (wide_hidden[0, rows] @ weight.t() / 0.7).log_softmax(-1)
    expected = everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)
    used = 2 if entropy_grad else 1

    def gradients(outputs, leaves):
        loss = sum(
            (output * gradient).sum()
            for output, gradient in zip(outputs[:used], output_gradients, strict=False)
        )
        return torch.autograd.grad(loss, leaves)

    return (
        found,
        expected,
        gradients(found, (hidden, head.weight)),
        gradients(expected, (wide_hidden, weight)),
    )


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_values_are_float32_and_gradients_are_rounded_once(entropy_grad):
    found, expected, gradients, references = head_and_reference(entropy_grad=entropy_grad)
    for value, reference in zip(found, expected, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, reference, rtol=1e-5, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.float(), reference, rtol=1.01 * ROUNDING, atol=1e-5)


def test_two_halves_hold_sixteen_bits():
    matrix = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    upper, lower = split_in_two(matrix, torch.bfloat16)
    torch.testing.assert_close(upper.float() + lower.float(), matrix, rtol=2.0**-16, atol=0)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied", "mistral"])
def test_a_trainer_s_logits_are_float32(folders, name):
    """Those of torchtitan's models and of transformers'; a tied weight's gradient has another part too."""
    wide, narrow = (measure(folders[name], {}, dtype)[1] for dtype in ("float32", "model"))
    assert wide["log_probs"] < 1e-4
    assert narrow["log_probs"] > 1e-2
    if name != "qwen3-tied":
        assert wide["gradient"] < ROUNDING < narrow["gradient"]


@pytest.mark.slow
def test_logits_are_float32_where_ranks_share_the_head(folders, tmp_path):
    layouts = [{"fsdp": 2}, {"tensor": 2}]
    run_ranks(
        Path(__file__).with_name("wide_head_worker.py"),
        2,
        [(str(folders["qwen3"]), layout) for layout in layouts],
        tmp_path,
    )
    for rank in range(2):
        for errors in json.loads((tmp_path / f"2-{rank}.json").read_text()):
            assert errors["log_probs"] < 1e-4
            assert errors["gradient"] < ROUNDING
