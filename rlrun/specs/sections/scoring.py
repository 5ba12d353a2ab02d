"""`[[rewards]]`, `[[filters]]` and `[scoring]`."""

from typing import Literal

from pydantic import Field

from rlrun.specs.sections.section import PluginSection, Section


class RewardSpec(PluginSection):
    """One reward; a sample's reward is the weighted sum of all."""

    weight: float = 1.0
    """Factor of this reward in the sum."""
    key: str | None = None
    """Which entry to use when the plugin returns a dict. None: it returns a number."""
    type_key: str | None = None
    """Metadata key under which a row may name another reward to be scored with. None: all rows use `type`."""


class FilterSpec(PluginSection):
    """Keeps or drops finished groups."""


class ScoringSpec(Section):
    """Where and how long rewards run: in killable processes beside the job."""

    workers: int = Field(default=1, ge=1)
    """Reward processes."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds a reward may take for a sample; then its worker is killed and the sample has an error."""
    concurrency: int = Field(default=32, ge=1)
    """Samples that rewards which wait for others (HTTP) have in flight at a time, in each process."""
    memory: float | None = Field(default=None, gt=0)
    """GiB of address space a reward process may use; wanting more is the sample's error. None: no limit."""
    on_error: Literal["stop", "zero", "drop"] = "stop"
    """What a crash, hang, exception or non-finite score does to its sample; always counted and named."""
