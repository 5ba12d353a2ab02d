"""`[eval]`: held-out datasets."""

from pydantic import Field

from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.section import Section


class EvalDatasetSpec(DataSpec):
    """A dataset to evaluate on; unset settings fall back to `[eval]`, then to `[rollout]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name in the metrics: `eval/<name>/reward`."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Samples drawn for each prompt; pass@k is reported up to it. None: `eval.samples_per_prompt`."""
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy. None: `eval.temperature`."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; 1 is off. None: `eval.top_p`."""
    max_response_tokens: int | None = Field(default=None, ge=1)
    """Longest response. None: `eval.max_response_tokens`."""
    pass_threshold: float = 1.0
    """A sample passes when its reward is at least this."""


class EvalSpec(Section):
    """When and how to evaluate: before training, every `interval` steps, and at the end."""

    interval: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before training and at the end."""
    before_training: bool = True
    """Evaluate the policy as loaded."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Samples drawn for each prompt. None: `rollout.samples_per_prompt`."""
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy. None: `rollout.temperature`."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; 1 is off. None: `rollout.top_p`."""
    max_response_tokens: int | None = Field(default=None, ge=1)
    """Longest response. None: `rollout.max_response_tokens`."""
    datasets: tuple[EvalDatasetSpec, ...] = ()
    """The held-out datasets, `[[eval.datasets]]`."""
