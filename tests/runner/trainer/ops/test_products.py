"""Products of the trainer on CPUs against float64."""

import pytest
import torch

from rlrun.runner.trainer.ops.products import add_weight_gradient_, linear, weight_gradient

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("tokens", "rows", "columns"), [(0, 8, 4), (1, 8, 4), (31, 64, 64), (300, 130, 70), (1001, 20, 200)]
)
def test_weight_gradient(path, dtype, tokens, rows, columns):
    torch.manual_seed(0)
    gradients, input = (torch.randn(tokens, size).to(dtype) for size in (rows, columns))
    expected = gradients.double().t() @ input.double()
    result = weight_gradient(gradients, input)
    assert (result.dtype, result.shape) == (dtype, (rows, columns))
    assert float((result.double() - expected).norm()) <= TOLERANCE[dtype] * float(expected.norm())


def test_weight_gradients_add_up(path):
    torch.manual_seed(0)
    gradients, input, sums = torch.randn(40, 70), torch.randn(40, 30), torch.randn(70, 30)
    expected = sums + gradients.t() @ input
    assert add_weight_gradient_(sums, gradients, input) is sums
    torch.testing.assert_close(sums, expected, atol=1e-5, rtol=1e-5)


def test_weight_gradient_of_strided_columns(path):
    """Slopes that are every second column of a matrix, as autograd may pass them on."""
    torch.manual_seed(0)
    gradients, input = torch.randn(50, 24)[:, ::2], torch.randn(50, 16)
    torch.testing.assert_close(weight_gradient(gradients, input), gradients.t() @ input, atol=1e-5, rtol=1e-5)


def test_weight_gradient_does_not_depend_on_threads(path):
    torch.manual_seed(0)
    gradients, input = torch.randn(500, 200), torch.randn(500, 96)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(weight_gradient(gradients, input))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, atol=0 if path != "plain" else 1e-4, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_linear(dtype):
    torch.manual_seed(0)
    input, weight = torch.randn(7, 3, 20).to(dtype), torch.randn(11, 20).to(dtype)
    expected = input.double() @ weight.double().t()
    assert float((linear(input, weight).double() - expected).norm()) <= TOLERANCE[dtype] * float(
        expected.norm()
    )
