import pytest
import torch

from rlrun.runner.trainer.optim.gradients import clip_gradients, non_finite_error


def parameters(**grads):
    made = {}
    for name, values in grads.items():
        made[name] = torch.nn.Parameter(torch.zeros(2))
        made[name].grad = None if values is None else torch.tensor(values)
    return made


def test_a_norm_above_the_largest_is_brought_down_to_it():
    found = parameters(a=[3.0, 0.0], b=[0.0, 4.0])
    assert clip_gradients(found, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(found["a"].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(found["b"].grad, torch.tensor([0.0, 0.8]))


def test_a_norm_below_it_is_left_alone():
    found = parameters(a=[3.0, 0.0], b=[0.0, 4.0])
    assert clip_gradients(found, 6.0) == pytest.approx(5.0)
    assert found["a"].grad.tolist() == [3, 0]


def test_copies_are_clipped_and_not_counted():
    found = parameters(a=[3.0, 4.0], head=[3.0, 4.0])
    assert clip_gradients(found, 1.0, copies={"head"}) == pytest.approx(5.0)
    torch.testing.assert_close(found["head"].grad, found["a"].grad)
    assert found["a"].grad.norm() == pytest.approx(1.0)


def test_parameters_without_a_gradient_have_no_part():
    assert clip_gradients(parameters(frozen=None, a=[3.0, 4.0]), 1.0) == pytest.approx(5.0)


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
