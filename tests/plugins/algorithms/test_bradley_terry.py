"""The loss of reward models against the formula in float64, in value and gradient."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import group, micro_batch
from rlrun.plugins.types import Group

SCORES = [0.5, -1.25, 3.0, 3.5, -20.0, 70.0]
"""Of three pairs: the first is right, the last is wrong by so much that an exponential would overflow."""
MARGINS = [0.0, 1.5, 0.25]


def pair_losses(scores: torch.Tensor, margins: list[float], center: float) -> list[torch.Tensor]:
    """InstructGPT, equation 1, with Llama 2's margin and the centring term of Helping or Herding."""
    losses = []
    for (win, lose), margin in zip(scores.reshape(-1, 2), margins, strict=True):
        losses.append(torch.log1p(torch.exp(-(win - lose - margin))) + center * (win + lose) ** 2)
    return losses


@pytest.mark.parametrize("center", [0.0, 0.01])
@pytest.mark.parametrize("margins", [MARGINS, [0.0] * 3], ids=["margins", "none"])
def test_the_loss_and_its_gradient_are_the_paper_s(margins: list[float], center: float) -> None:
    exact = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    expected = pair_losses(exact, margins, center)
    torch.stack(expected).sum().backward()
    scores = torch.tensor(SCORES, requires_grad=True)
    advantages = torch.tensor(np.repeat(np.repeat(margins, 2), 2), dtype=torch.float32)
    inputs = micro_batch(12, 6, scores=scores, advantages=advantages, mask=torch.ones(12))
    outputs = build("algorithms", "bradley_terry", {"center": center}).loss(inputs)
    of_pair = outputs.loss.reshape(3, 4)
    torch.testing.assert_close(of_pair.double(), torch.stack(expected).detach()[:, None].expand(3, 4))
    of_pair[:, 0].sum().backward()
    torch.testing.assert_close(scores.grad, exact.grad.float())
    assert outputs.metrics["preferred_frac"].reshape(3, 4)[:, 0].tolist() == [1, 0, 0]


def pair(metadata: Mapping[str, object]) -> Group:
    """A pair of responses to a row with this metadata."""
    of_row = group([0.0, 0.0])
    row = replace(of_row.prompt.row, metadata=metadata)
    return replace(of_row, prompt=replace(of_row.prompt, row=row))


def test_a_row_s_margin_is_read_where_it_is_asked_for() -> None:
    with_margin, without = pair({"margin": 2}), pair({})
    plain = build("algorithms", "bradley_terry", {})
    assert not any(array.any() for array in plain.advantages([with_margin, without]))
    heeding = build("algorithms", "bradley_terry", {"use_margin": True})
    assert all((array == 2).all() for array in heeding.advantages([with_margin]))
    with pytest.raises(ValueError, match=r"margin of its metadata is None, and algorithm\.use_margin needs"):
        heeding.advantages([without])


@pytest.mark.parametrize("margin", ["2", True, float("nan")])
def test_a_margin_that_is_no_number_is_refused(margin: object) -> None:
    heeding = build("algorithms", "bradley_terry", {"use_margin": True})
    with pytest.raises(ValueError, match="margin of its metadata is"):
        heeding.advantages([pair({"margin": margin})])
