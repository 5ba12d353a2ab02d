"""What an algorithm needs: algorithms declare it, and the rules, the defaults and the runner read it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Statistic = Literal["policy_entropies", "policy_squared_probs"]
"""A number of the policy's distribution at each response token. By the same name, each is a field of `Needs`
and of `Sample`, and an output of the pass before the update."""


LEAST_REST = -80.0
"""The smallest log-prob of all other tokens together: e^-80 is a normal float32 number, and no divergence
changes by it. Where the k tokens are the whole vocabulary, both models have it."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the policy's distribution is from the teacher's at each token, as a loss reads it.

    Both distributions are cut to k + 1 outcomes: the teacher's k most probable tokens, and all other tokens
    together. This never makes a divergence larger, and with k = vocabulary it changes nothing.
    """

    distance: Callable[[Any, Any], Any]
    """Returns `[T]` distances from the log-probs of policy and teacher, `[T, k + 1]` torch tensors each, of
    which the last column is that of all other tokens. It is differentiable in the policy's."""
    top_k: int
    """k, at most the number of tokens in the vocabulary."""
    temperature: float | None = None
    """Divides the logits of both models. None: the temperature of the rollout."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm needs from the framework, which loads and computes nothing else."""

    rollout: bool = True
    """The policy answers the prompts. False: rows contain demonstrations (SFT)."""
    rewards: bool = True
    """The advantages use rewards. False: another signal, such as a teacher, scores the tokens."""
    pairs: bool = False
    """The loss compares a preferred and a rejected response, which are adjacent in one micro-batch (DPO).
    Rows have them; with a rollout, they are the best and the worst sample of a group, by reward."""
    scores: bool = False
    """The model gives each sample one score in place of log-probs, as reward models do."""
    labels: bool = False
    """Rows have a response and a label that says whether it is good (KTO). A group has two samples: the row's
    response, and the response of the step's next row to the same prompt, which is not trained."""
    reference: bool = False
    """Log-probs of the frozen reference policy."""
    teacher: bool = False
    """Log-probs of the model of `[teacher]`, set on samples before `advantages` is called."""
    divergence: Divergence | None = None
    """The loss contains the divergence from the teacher's distribution. It needs the teacher too."""
    critic: bool = False
    """Values of the critic, set on samples before `advantages` is called. The algorithm is an `ActorCritic`,
    which also has `returns` and `value_loss`."""
    policy_log_probs: bool = False
    """Log-probs of the policy, set on samples before `advantages` is called."""
    current_log_probs: bool = False
    """These log-probs are those of the weights that the step updates, also for samples of older weights and
    where the ratio is to the engine's probabilities. It takes a pass where samples may be stale."""
    policy_entropies: bool = False
    """Entropies of the policy before the update, set on samples before `advantages` is called."""
    policy_squared_probs: bool = False
    """Sums of the policy's squared probabilities before the update, set on samples before `advantages` is
    called."""
    entropy_grad: bool = False
    """The loss contains the entropy."""
    old_log_probs: bool = True
    """The loss contains a ratio to the policy that generated the samples."""
    trainer_log_probs: bool = False
    """Old log-probs of the trainer, in addition to the engine's: `old_log_probs = "rollout"` is an error."""
    marks: bool = False
    """The loss reads a number for each token that depends on the whole step. The algorithm is a
    `TokenMarker`, which also has `marks`."""
    engine_ratio: bool = False
    """The ratio is to the engine's probabilities, by which the samples were drawn: `trainer.old_log_probs` is
    "rollout" where the spec does not set it. A correction excludes it."""
    state: bool = False
    """The algorithm remembers something from step to step. It is a `StatefulAlgorithm`, which also has
    `observe`, `step_values`, `state` and `restore`."""
    group_relative: bool = False
    """Advantages compare the samples of a group, so n must be at least 2."""
    greedy_reward: bool = False
    """Rewards of greedy responses, set on samples before `advantages` is called. The policy answers each
    prompt once more, at temperature 0. This response is scored; it is not trained on, and not part of the
    group."""

    @property
    def reads_pairs(self) -> bool:
        """Whether rows have the preferred and the rejected response."""
        return self.pairs and not self.rollout

    def trained(self, samples: int) -> int:
        """Returns how many sequences a prompt with so many `samples`, or a row, gives to training."""
        return 2 if self.pairs or self.labels else samples

    def undivided(self, sample_tokens: int) -> int:
        """Returns the most tokens that must be in one micro-batch: a sample's, or those of two in a pair.

        `sample_tokens`: the maximum length of a sample.
        """
        return sample_tokens * (2 if self.pairs else 1)

    def responses(self, samples: int) -> int:
        """Returns how many responses to a prompt are generated, of which `samples` are trained on."""
        return samples + self.greedy_reward

    @property
    def compared_tokens(self) -> int:
        """How many of the teacher's tokens are compared one by one; 0 without a divergence."""
        return 0 if self.divergence is None else self.divergence.top_k

    @property
    def policy_statistics(self) -> tuple[Statistic, ...]:
        """Returns the statistics of the policy that are needed; they take a pass before the update."""
        return tuple(name for name in get_args(Statistic) if getattr(self, name))
