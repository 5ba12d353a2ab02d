import pytest
import torch

from rlrun.runner.trainer.optim.gradients import clip_gradients, gradient_norm, non_finite_error


def parameters(**grads):
    made = {}
    for name, values in grads.items():
        made[name] = torch.nn.Parameter(torch.zeros(2))
        made[name].grad = None if values is None else torch.tensor(values)
    return made


def test_a_norm_above_the_largest_is_brought_down_to_it():
    found = parameters(a=[3.0, 0.0], b=[0.0, 4.0])
    clip_gradients(found, 1.0, 5.0)
    torch.testing.assert_close(found["a"].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(found["b"].grad, torch.tensor([0.0, 0.8]))


def test_a_norm_below_it_is_left_alone():
    found = parameters(a=[3.0, 0.0], b=[0.0, 4.0])
    clip_gradients(found, 6.0, 5.0)
    assert found["a"].grad.tolist() == [3, 0]


def test_copies_are_clipped_and_not_counted():
    found = parameters(a=[3.0, 4.0], head=[3.0, 4.0])
    assert gradient_norm(found, copies={"head"}).item() == pytest.approx(5.0)
    clip_gradients(found, 1.0, 5.0)
    torch.testing.assert_close(found["head"].grad, found["a"].grad)
    assert found["a"].grad.norm() == pytest.approx(1.0)


def test_parameters_without_a_gradient_have_no_part():
    found = parameters(frozen=None, a=[3.0, 4.0])
    assert gradient_norm(found).item() == pytest.approx(5.0)
    clip_gradients(found, 1.0, 5.0)
    assert found["frozen"].grad is None


def test_norm_and_clipping_are_torchs_own_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    ours = {
        name: torch.nn.Parameter(torch.zeros(size, 7)) for name, size in (("a", 300), ("b", 5), ("c", 64))
    }
    for parameter in ours.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    theirs = [torch.nn.Parameter(torch.zeros_like(parameter)) for parameter in ours.values()]
    for parameter, own in zip(theirs, ours.values(), strict=True):
        parameter.grad = own.grad.clone()
    norm = gradient_norm(ours)
    clip_gradients(ours, 0.3, float(norm))
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, 0.3, foreach=True))
    assert all(torch.equal(own.grad, one.grad) for own, one in zip(ours.values(), theirs, strict=True))


@pytest.mark.parametrize(
    ("loss", "grads", "expected"),
    [
        (float("nan"), {"a": [1.0, 1.0]}, "optimizer step 3: the loss is nan"),
        (1.0, {"a": [1.0, 1.0], "b": [float("inf"), 0.0]}, "the gradient of b is not finite;"),
        (1.0, {"a": [1.0, 1.0], "frozen": None}, "the gradient of a parameter on another rank is not"),
        (
            1.0,
            {name: [float("nan"), 0.0] for name in "abcd"},
            r"the gradient of a, b, c is not finite \(4 parameters\)",
        ),
    ],
)
def test_non_finite_gradients_are_named(loss, grads, expected):
    error = non_finite_error(3, loss, parameters(**grads), "critic")
    with pytest.raises(ArithmeticError, match=expected):
        raise error
    assert "Lower critic.lr" in str(error)
