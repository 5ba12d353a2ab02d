"""`[debug]`: a part of a job alone."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section


class DebugSpec(Section):
    """Rollouts without a trainer, a trainer without rollouts, one step again."""

    mode: Literal["rollout", "train"] | None = None
    """`rollout`: generate, score, filter and save, by the model as it is; no trainer. `train`: train on the
    saved samples of `rollouts`; no engine. None: the whole job."""
    rollouts: Annotated[str | None, PathMarker()] = None
    """Folder of the run that saved the samples, for `mode = "train"`."""
    step: int | None = Field(default=None, ge=1)
    """Train this step of that run again and end, from the run's own checkpoint of the step before. None:
    every step, from the model."""
    save_rollouts: bool = False
    """Keep every sample of every step, with tokens, log-probs, masks and versions, in `rollouts/` of the run.
    Always so with `mode = "rollout"`."""

    @property
    def keeps_rollouts(self) -> bool:
        """Whether every sample is kept whole."""
        return self.save_rollouts or self.mode == "rollout"
