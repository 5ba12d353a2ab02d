"""Hooks see and change a step's samples, batches and gradients; what they must not change is refused."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.testing import group, micro_batch
from rlrun.plugins.types import Group, LossInputs
from rlrun.runner.contracts.hooks import HookError, Hooks


class Made:
    """A hook made of functions."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        vars(self).update(methods)


def hooks(**methods: Callable[..., Any]) -> Hooks:
    return Hooks([('hooks.0 ("mine")', Made(**methods))])


def test_a_hook_masks_tokens_and_notes_something_on_samples() -> None:
    groups = [group([1.0, 0.0], lengths=[3, 2])]

    def mask(groups: Sequence[Group]) -> None:
        for sample in groups[0].samples:
            sample.loss_mask[1:] = 0
            sample.info["masked"] = True

    hooks(on_samples=mask).on_samples(groups)
    assert [sample.loss_mask.tolist() for sample in groups[0].samples] == [[1, 0, 0], [1, 0]]
    assert groups[0].samples[0].info == {"masked": True}


def raise_mask(groups: Sequence[Group]) -> None:
    groups[0].samples[1].loss_mask[:] = 1


def other_reward(groups: Sequence[Group]) -> None:
    groups[0].samples[1].reward = 2.0


def other_tokens(groups: Sequence[Group]) -> None:
    groups[0].samples[1].tokens = groups[0].samples[1].tokens + 1


def short_mask(groups: Sequence[Group]) -> None:
    groups[0].samples[1].loss_mask = np.zeros(1, np.float32)


def list_mask(groups: Sequence[Group]) -> None:
    groups[0].samples[1].loss_mask = [0.0, 0.0]  # type: ignore[assignment]


def list_tokens(groups: Sequence[Group]) -> None:
    groups[0].samples[1].tokens = groups[0].samples[1].tokens.tolist()


def weights(groups: Sequence[Group]) -> None:
    groups[0].samples[1].policy_weights = np.zeros(2, np.float32)


def drop(groups: Sequence[Group]) -> None:
    groups[0].samples.pop()


def fail(groups: Sequence[Group]) -> None:
    raise KeyError("label")


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (raise_mask, "sample 0-1: loss_mask may only go from 1 to 0: what the policy did not write is not"),
        (other_reward, "sample 0-1: only loss_mask and info may change: an algorithm turns rewards into"),
        (other_tokens, "sample 0-1: only loss_mask and info may change"),
        (short_mask, r"sample 0-1: loss_mask has the shape \[1\], the response \[2\]"),
        (list_mask, "sample 0-1: its arrays stay arrays of the same type: change loss_mask in place"),
        (list_tokens, "sample 0-1: its arrays stay arrays of the same type"),
        (weights, "sample 0-1: only loss_mask and info may change"),
        (drop, "it adds or removes samples: a filter does that"),
        (fail, "failed: KeyError: 'label'"),
    ],
)
def test_what_a_hook_does_wrong_with_samples_names_it(hook: Callable[..., None], message: str) -> None:
    groups = [group([1.0, 0.0], lengths=[3, 2])]
    groups[0].samples[1].loss_mask[0] = 0
    with pytest.raises(HookError, match=rf'^hooks\.0 \("mine"\): on_samples:? {message}'):
        hooks(on_samples=hook).on_samples(groups)


@pytest.mark.parametrize("method", ["on_samples", "on_model", "before_update"])
def test_a_result_that_nobody_would_use_is_refused(method: str) -> None:
    argument = [group([1.0, 0.0])]
    with pytest.raises(
        HookError, match=rf'^hooks\.0 \("mine"\): {method}: it returned list, which has no effect'
    ):
        getattr(hooks(**{method: lambda given: [1]}), method)(argument)
    getattr(hooks(**{method: lambda given: None}), method)(argument)


def test_hooks_replace_the_advantages_of_a_micro_batch_one_after_the_other() -> None:
    def double(inputs: LossInputs) -> torch.Tensor:
        return inputs.advantages.double() * 2

    def look(inputs: LossInputs) -> None:
        seen.append(inputs.advantages)

    seen: list[torch.Tensor] = []
    inputs = micro_batch()
    both = Hooks([("a", Made(on_batch=double)), ("b", Made(on_batch=look)), ("c", Made(on_batch=double))])
    assert torch.equal(both.on_batch(inputs).advantages, inputs.advantages * 4)
    assert torch.equal(seen[0], inputs.advantages * 2) and seen[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            torch.zeros(3),
            r"advantages are a tensor of the shape \[12\], it returned Tensor of the shape \[3\]",
        ),
        (np.zeros(12), r"a tensor of the shape \[12\], it returned ndarray of the shape \[12\]"),
        (0.5, r"advantages are a tensor of the shape \[12\], it returned 0\.5"),
        (torch.full((12,), float("nan")), "it returned advantages that are not finite"),
    ],
)
def test_advantages_that_cannot_be_are_refused(given: Any, message: str) -> None:
    with pytest.raises(HookError, match=message):
        hooks(on_batch=lambda inputs: given).on_batch(micro_batch())


def test_a_job_without_hooks_keeps_its_inputs() -> None:
    inputs = micro_batch()
    assert Hooks().on_batch(inputs) is inputs and not Hooks().see_gradients
