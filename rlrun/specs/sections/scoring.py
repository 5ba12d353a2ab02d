"""`[[rewards]]`, `[[filters]]` and `[scoring]`."""

from typing import Literal

from pydantic import Field

from rlrun.specs.sections.section import PluginSection, Section


class RewardSpec(PluginSection):
    """One reward. The reward of a sample is the weighted sum of all rewards."""

    weight: float = 1.0
    """Factor of this reward in the sum."""
    key: str | None = None
    """Entry to use of the dict that the plugin returns. None: the plugin returns a number."""
    type_key: str | None = None
    """Metadata key under which a row may name a different reward to score it with. None: `type` scores all
    rows."""


class FilterSpec(PluginSection):
    """A filter that keeps or drops finished groups."""


class ScoringSpec(Section):
    """The processes that compute rewards, which are killed when a reward hangs or crashes."""

    workers: int = Field(default=1, ge=1)
    """Number of reward processes. Increase it where rewards use more CPU time than one core has."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds that a reward may take for one sample. After that its process is killed, and `on_error` decides
    about the sample."""
    concurrency: int = Field(default=32, ge=1)
    """Number of samples that each process scores at the same time with asynchronous rewards, which wait for
    HTTP answers for instance."""
    memory: float | None = Field(default=None, gt=0)
    """Limit of a reward process's address space, in GiB; exceeding it is an error of that sample. None: no
    limit."""
    on_error: Literal["stop", "zero", "drop"] = "stop"
    """What happens to a sample whose reward crashes, hangs, raises, or is not finite. `stop`: the job ends.
    `zero`: the sample's reward is 0. `drop`: the sample is dropped. Errors are always counted and named in
    the log."""
