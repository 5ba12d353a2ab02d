"""Functions that are compiled on GPUs: torch captures each whole, and its graph computes what is written."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.runner.trainer.compat import fusion
from rlrun.runner.trainer.ops import elementwise, softmax
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model

TOKENS, HEADS, WIDTH, VOCABULARY = 9, 3, 16, 50


def rotated() -> tuple[torch.Tensor, ...]:
    x = torch.randn(TOKENS, HEADS, WIDTH).bfloat16().requires_grad_()
    output = elementwise.rotate(x, torch.randn(TOKENS, 2, WIDTH))
    return output, *torch.autograd.grad(output, x, torch.randn_like(output))


def gated() -> tuple[torch.Tensor, ...]:
    inputs = [torch.randn(1, TOKENS, WIDTH).bfloat16().requires_grad_() for _ in range(2)]
    output = elementwise.silu_mul(*inputs)
    return output, *torch.autograd.grad(output, inputs, torch.randn_like(output))


def softmaxed() -> tuple[torch.Tensor, ...]:
    logits, targets = torch.randn(TOKENS, VOCABULARY).bfloat16(), torch.randint(0, VOCABULARY, (TOKENS,))
    results = softmax.log_softmax(logits, targets, 0.7)
    found = [results]
    for entropy_gradients in (None, torch.randn(TOKENS)):
        gradients = softmax.softmax_gradients_(
            logits.clone(),
            targets,
            ours=torch.ones(TOKENS),
            log_sums=results[1],
            log_prob_gradients=torch.randn(TOKENS),
            entropies=results[2],
            entropy_gradients=entropy_gradients,
            temperature=0.7,
        )
        found.append(gradients)
    return tuple(found)


@pytest.mark.parametrize("compute", [rotated, gated, softmaxed])
def test_a_compiled_function_computes_what_is_written(
    compute: Callable[[], tuple[torch.Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (elementwise, softmax):
        monkeypatch.setattr(module, "serves", lambda *tensors: False)
    torch.manual_seed(0)
    expected = compute()
    captured = []

    def capture(function: Callable[..., Any]) -> Callable[..., Any]:
        captured.append(function)
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    monkeypatch.setattr(fusion, "fuses", lambda tensor: True)
    monkeypatch.setattr(fusion, "compiled", capture)
    torch.manual_seed(0)
    for ours, plain in zip(compute(), expected, strict=True):
        # each may round where the other does not
        torch.testing.assert_close(ours.float(), plain.float(), atol=0.02, rtol=0.02)
    assert captured


def test_layers_that_are_computed_again_have_the_same_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selective recomputation watches the operations of a layer, of which compiled functions hide theirs."""
    for module in (elementwise, softmax):
        monkeypatch.setattr(module, "serves", lambda *tensors: False)
    monkeypatch.setattr(fusion, "fuses", lambda tensor: tensor.dtype.itemsize == 2)
    monkeypatch.setattr(fusion, "compiled", partial(torch.compile, backend="aot_eager"))
    folder, found = make_tiny_model(tmp_path / "model", scale=0.1), []
    for recomputed in ("none", "selective", "full"):
        spec = make_spec(folder, dtype="bfloat16", activation_checkpointing=recomputed)
        rank, sequences = make_rank(folder, spec), make_sequences(5)
        [metrics] = rank.policy.train(sequences, plan(sequences, spec))
        rank.close()
        found.append((metrics["train/loss"], metrics["train/grad_norm"]))
    assert found == found[:1] * 3


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_can_compile", lambda: True)
    assert not fusion.fuses(torch.ones(2, dtype=torch.bfloat16))
    with FakeTensorMode():
        assert not fusion.fuses(torch.ones(2, dtype=torch.bfloat16, device="cuda"))
