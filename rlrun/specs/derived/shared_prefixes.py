"""Decides whether the trainer computes prefixes that sequences share once (`trainer.share_prefixes`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.models.architecture import Architecture
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.features import SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import reason_against_model, reasons_against
from rlrun.specs.sections.job import Spec

SHORTEST = 32
"""A shorter prefix is not shared: attention computes in blocks of 32 keys, which would cost more than it
saves."""
MIN_SHARE = 0.1
"""A prefix that is a smaller share of its sequence is not shared: steps with 3 to 7 % fewer tokens were
measured to take between 3 % longer and 4 % shorter (benchmarks/NOTES.md)."""


NOT_SHARED = (
    f"prompts of fewer than {SHORTEST} tokens, or than {100 * MIN_SHARE:.0f} % of a sample, are not shared"
)
"""What `rlrun validate`, the start of a job and `rlrun plan` say, which estimates with mean lengths."""


@dataclass(frozen=True, slots=True)
class SharingChoice:
    """Whether prefixes are shared in a job whose spec leaves it open, and why."""

    on: bool
    reason: str

    def __str__(self) -> str:
        """Returns the line that `rlrun validate`, `plan` and `launch` show."""
        return f"trainer.share_prefixes is {'on' if self.on else 'off'}: {self.reason}"


def is_shared(prompt: float, response: float) -> bool:
    """Returns whether samples with responses of this length share a prompt of this length, in tokens."""
    return prompt >= max(SHORTEST, MIN_SHARE * (prompt + response))


def choose_sharing(
    spec: Spec, models: Sequence[Architecture], *, rollout: bool, pairs: bool
) -> SharingChoice:
    """Returns whether a job shares prefixes whose spec does not say so.

    `models`: the policy, and the teacher if ranks compute it. `rollout`, `pairs`: the needs of the algorithm.
    """
    for conflict in reasons_against(SHARED_PREFIXES, Job(spec)):
        return SharingChoice(False, conflict)
    if spec.cluster.gpus_per_node:
        return SharingChoice(False, "what it gains on GPUs is not measured; `true` shares them there too")
    for model in models:
        if reason := reason_against_model(SHARED_PREFIXES, model):
            return SharingChoice(False, f"{model.family}: {reason}")
    if not (rollout or pairs):
        return SharingChoice(False, "each demonstration has a prompt of its own")
    prompt, response = spec.rollout.max_prompt_tokens, spec.rollout.max_response_tokens
    if prompt < SHORTEST:
        return SharingChoice(False, f"prompts have fewer than {SHORTEST} tokens")
    samples = spec.rollout.samples_per_prompt if rollout else 2
    if samples > 1:
        saved = _saved(samples, prompt, response)
        return SharingChoice(True, f"{samples} samples share a prompt; {saved}; {NOT_SHARED}")
    if spec.rollout.function.type == "single_turn":
        return SharingChoice(False, "each prompt has one sample (rollout.samples_per_prompt)")
    return SharingChoice(True, "the conversations of an execution may have their beginnings in common")


def _saved(samples: int, prompt: int, response: int) -> str:
    """Returns what sharing saves in a group of the longest samples; those of the data may be shorter."""
    lengths = f"prompts of {prompt:,} tokens and responses of {response:,}, the longest"
    if not is_shared(prompt, response):
        return f"no fewer tokens with {lengths}"
    ratio = samples * (prompt + response) / (prompt + samples * response)
    return f"{ratio:.2g} times fewer tokens with {lengths}"
