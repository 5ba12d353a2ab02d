"""`[eval]`: held-out datasets."""

from pydantic import Field, field_validator

from rlrun.specs.data import DataSpec
from rlrun.specs.section import Section


class EvalDatasetSpec(DataSpec):
    """A dataset to evaluate on; unset settings fall back to `[eval]`, then to `[rollout]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name in the metrics: `eval/<name>/reward`."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_response_tokens: int | None = Field(default=None, ge=1)
    pass_threshold: float = 1.0
    """A sample passes when its reward is at least this."""


class EvalSpec(Section):
    """When and how to evaluate: before training, every `interval` steps, and at the end."""

    interval: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before training and at the end."""
    before_training: bool = True
    """Evaluate the policy as loaded."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_response_tokens: int | None = Field(default=None, ge=1)
    datasets: tuple[EvalDatasetSpec, ...] = ()

    @field_validator("datasets")
    @classmethod
    def _unique_names(cls, datasets: tuple[EvalDatasetSpec, ...]) -> tuple[EvalDatasetSpec, ...]:
        names = [dataset.name for dataset in datasets]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two datasets are named {sorted(twice)[0]!r}; give each its own name")
        return datasets
