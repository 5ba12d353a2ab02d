"""`[eval]`: held-out datasets."""

from pydantic import Field

from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.section import Section, derived


class EvalDatasetSpec(DataSpec):
    """A held-out dataset. Settings that are not given come from `[eval]`, then from `[rollout]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the dataset in the metrics: `eval/<name>/reward`."""
    samples_per_prompt: int = derived(ge=1)
    """Number of samples per prompt; pass@k is reported for k up to this number. Unset:
    `eval.samples_per_prompt`."""
    temperature: float = derived(ge=0)
    """Sampling temperature; 0 is greedy. Unset: `eval.temperature`."""
    top_p: float = derived(gt=0, le=1)
    """Probability mass of nucleus sampling; 1 turns it off. Unset: `eval.top_p`."""
    max_response_tokens: int = derived(ge=1)
    """Maximum length of a response in tokens. Unset: `eval.max_response_tokens`."""
    pass_threshold: float = 1.0
    """Reward from which a sample counts as passed, for pass@k."""


class EvalSpec(Section):
    """When and how the policy is evaluated: before training, every `interval` steps, and at the end."""

    interval: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before training and at the end."""
    before_training: bool = True
    """Evaluate the initial policy before the first step."""
    samples_per_prompt: int = derived(ge=1)
    """Number of samples per prompt. Unset: `rollout.samples_per_prompt`."""
    temperature: float = derived(ge=0)
    """Sampling temperature; 0 is greedy. Unset: `rollout.temperature`."""
    top_p: float = derived(gt=0, le=1)
    """Probability mass of nucleus sampling; 1 turns it off. Unset: `rollout.top_p`."""
    max_response_tokens: int = derived(ge=1)
    """Maximum length of a response in tokens. Unset: `rollout.max_response_tokens`."""
    datasets: tuple[EvalDatasetSpec, ...] = ()
    """The held-out datasets, `[[eval.datasets]]`."""
