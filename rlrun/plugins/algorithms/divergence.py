"""The divergences between a policy's and a teacher's distributions of the next token: generalised
Jensen-Shannon, and the forward and the reverse KL at its ends.

With teacher P, policy Q and their mixture M = beta · P + (1 - beta) · Q, GKD's divergence
(https://arxiv.org/abs/2306.13649, equation 1) is

    beta · KL(P || M) + (1 - beta) · KL(Q || M)

It goes to 0 at both ends: divided by beta to KL(P || Q), and divided by 1 - beta to KL(Q || P). Therefore
beta = 0 and beta = 1 are these two KLs themselves, as in TRL's GKDTrainer.
"""

from dataclasses import dataclass
from math import log, log1p
from typing import Any

from pydantic import Field

from rlrun.plugins.types import Divergence
from rlrun.specs.sections.section import Section


class DivergenceParams(Section):
    """The divergence from the teacher's distribution at each token."""

    beta: float = Field(default=0.5, ge=0, le=1)
    """The teacher's share of the mixture in the generalised Jensen-Shannon divergence. 0 is the forward KL,
    which covers all that the teacher may say; 1 is the reverse KL, which seeks what it says most."""
    top_k: int = Field(default=64, ge=1)
    """How many of the teacher's most probable tokens are compared one by one; all others count as one more
    token, with the sum of their probabilities. The size of the vocabulary gives the whole distribution. Each
    response token takes 8 bytes times this number on its way from the teacher to the trainer."""
    temperature: float | None = Field(default=None, gt=0)
    """Divides the logits of both models in the divergence. None: `rollout.temperature`."""

    @property
    def required(self) -> Divergence:
        """Returns what the framework must compute."""
        return Divergence(GeneralisedJSD(self.beta), self.top_k, self.temperature)


@dataclass(frozen=True, slots=True)
class GeneralisedJSD:
    """The generalised Jensen-Shannon divergence, with the KLs at its ends."""

    beta: float

    def __call__(self, policy: Any, teacher: Any) -> Any:
        """Returns `[T]` divergences from `[T, K]` log-probs of two distributions over the same K outcomes."""
        if self.beta == 0:
            return _kl(teacher, policy)
        if self.beta == 1:
            return _kl(policy, teacher)
        mixture = (teacher + log(self.beta)).logaddexp(policy + log1p(-self.beta))
        return self.beta * _kl(teacher, mixture) + (1 - self.beta) * _kl(policy, mixture)


def _kl(first: Any, second: Any) -> Any:
    """Returns KL(first || second)."""
    return (first.exp() * (first - second)).sum(-1)
