"""How the policy generates in training and in each evaluation: the sampling settings and limits of the spec.

[rollout], [[eval.datasets]] ──▶ RolloutSettings ──▶ Sampling of a turn ──▶ GenerateRequest
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Sampling
from rlrun.plugins.types import Prompt
from rlrun.runner.contracts.carriers import NO_OPTIONS, RequestOptions
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.rollout import RolloutSpec


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How the policy generates for every prompt of one purpose: training, or one evaluation dataset.

    Example, for prompts of up to 512 tokens:

        RolloutSettings(
            purpose="rollout",
            samples=8,
            sampling=Sampling(max_new_tokens=1024),
            max_sample_tokens=1536,
            max_turn_tokens=256,
            timeout=600.0,
        )
    """

    purpose: str
    """Part of request ids and seeds, so that training and every evaluation have seeds of their own."""
    samples: int
    """n: executions per prompt, unless a prompt has its own number."""
    sampling: Sampling
    """The settings of a whole response; `sampling_for` returns those of one turn."""
    max_sample_tokens: int
    """The maximum length of a sample in tokens, prompt included."""
    max_turn_tokens: int
    """The maximum tokens of one turn."""
    timeout: float
    """Seconds that one execution may take."""
    options: RequestOptions = NO_OPTIONS
    """The options of every request; `options_for` returns those of one turn."""
    first_number: int = 0
    """Number of the first execution of each prompt: how many of its group's executions ran before."""
    is_greedy: bool = False
    """Every turn takes the likeliest tokens, whatever the rollout requests."""

    def samples_of(self, prompt: Prompt) -> int:
        """Returns the number of executions of a prompt."""
        return prompt.samples or self.samples

    def sampling_for(self, tokens: NDArray[np.int32], requested: Sampling | None) -> Sampling | None:
        """Returns the sampling of a turn after `tokens`, within all limits; None if no token fits.

        `requested`: the settings of a rollout that does not want those of the spec.
        """
        room = min(self.max_turn_tokens, self.max_sample_tokens - len(tokens))
        limited = (requested or self.sampling).limited(room)
        if self.is_greedy:
            limited = replace(limited, temperature=0.0, top_p=1.0, top_k=-1)
        return limited if limited.max_new_tokens > 0 else None

    def options_for(self, sampling: Sampling) -> RequestOptions:
        """Returns the options of a turn: engines record no mask of tokens drawn from the whole vocabulary."""
        return self.options if sampling.cuts_vocabulary else replace(self.options, return_sampling_mask=False)


def greedy_settings(settings: RolloutSettings) -> RolloutSettings:
    """Returns the settings of the greedy response to each prompt of training (`needs.greedy_reward`)."""
    return replace(settings, purpose="greedy", samples=1, is_greedy=True)


def settings_after_probe(settings: RolloutSettings, probe: int) -> RolloutSettings:
    """Returns the settings of the executions that follow the first `probe` ones of each prompt."""
    return replace(settings, samples=settings.samples - probe, first_number=probe)


def rollout_settings(rollout: RolloutSpec, dataset: EvalDatasetSpec | None = None) -> RolloutSettings:
    """Returns the settings of training, or of an evaluation dataset: its own keys, and `[rollout]` for all
    others.
    """
    section = rollout if dataset is None else dataset
    longest = section.max_response_tokens
    return RolloutSettings(
        purpose="rollout" if dataset is None else f"eval-{dataset.name}",
        samples=section.samples_per_prompt,
        sampling=Sampling(
            max_new_tokens=longest,
            temperature=section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            min_new_tokens=section.min_response_tokens,
            stop=section.stop,
            stop_token_ids=section.stop_token_ids,
        ),
        max_sample_tokens=section.max_prompt_tokens + longest,
        max_turn_tokens=rollout.turn_tokens(longest),
        timeout=rollout.seconds_for(longest),
        options=RequestOptions(return_sampling_mask=dataset is None and rollout.sampling_mask),
    )
