"""On-policy distillation of samples that older weights made: the gradient of the loss, over every response
that there is, against that of the reverse KL in float64.
"""

import numpy as np
import torch

from rlrun.plugins.algorithms.on_policy_distillation import OnPolicyDistillation, OnPolicyDistillationParams
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs

OUTCOMES = 6


def test_the_gradient_is_that_of_the_reverse_kl_of_the_current_policy() -> None:
    """The engine's older policy draws, the ratio weighs, and the distance is the current policy's."""
    draw = np.random.default_rng(3)
    policy = torch.tensor(draw.normal(size=OUTCOMES), requires_grad=True)
    stale, teacher = (torch.tensor(draw.normal(size=OUTCOMES)).log_softmax(0) for _ in range(2))
    stale = (policy.detach() + 0.05 * stale).log_softmax(0)  # within the bounds of the clipped ratio
    current = policy.log_softmax(0)
    algorithm = OnPolicyDistillation(OnPolicyDistillationParams())
    assert algorithm.needs.current_log_probs
    groups = responses(current.detach(), teacher)
    advantages = torch.tensor(np.array([each[0] for each in algorithm.advantages(groups)]))
    zeros = torch.zeros(OUTCOMES)
    loss = algorithm.loss(
        LossInputs(
            log_probs=current,
            entropy=zeros,
            old_log_probs=stale,
            rollout_log_probs=stale,
            reference_log_probs=None,
            advantages=advantages,
            mask=zeros + 1,
            sample=torch.arange(OUTCOMES),
            num_samples=OUTCOMES,
        )
    ).loss
    [ours] = torch.autograd.grad((stale.exp() * loss).sum(), policy, retain_graph=True)
    [exact] = torch.autograd.grad((current.exp() * (current - teacher)).sum(), policy)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-7)
    drifted = responses(stale, teacher)
    for each, one in zip(drifted, groups, strict=True):
        difference = algorithm.advantages([each])[0] - algorithm.advantages([one])[0]
        assert abs(difference[0]) > 1e-3, "the engine's log-probs would give another gradient"


def responses(policy: torch.Tensor, teacher: torch.Tensor) -> list[Group]:
    """A group for each response of one token, with these log-probs."""
    groups = [group([0.0]) for _ in range(OUTCOMES)]
    for number, one in enumerate(groups):
        [sample] = one.samples
        sample.policy_log_probs = policy[[number]].numpy()
        sample.teacher_log_probs = teacher[[number]].numpy()
    return groups
