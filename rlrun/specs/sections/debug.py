"""`[debug]`: run only a part of a job."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section


class DebugSpec(Section):
    """Runs rollouts without a trainer, a trainer without rollouts, or one step again."""

    mode: Literal["rollout", "train"] | None = None
    """The part of the job to run. `rollout`: generate, score, filter and save samples with the initial model,
    without a trainer. `train`: train on the saved samples of `rollouts`, without engines. None: the whole
    job."""
    rollouts: Annotated[str | None, PathMarker()] = None
    """Folder of the run that saved the samples, for `mode = "train"`."""
    step: int | None = Field(default=None, ge=1)
    """Repeat only this step of the run in `rollouts`, starting from that run's checkpoint of the step before.
    None: train on all saved steps, starting from the initial model."""
    save_rollouts: bool = False
    """Save every sample of every step with tokens, log-probs, masks and versions in the run's `rollouts/`,
    for a later `mode = "train"`. `mode = "rollout"` always saves them."""

    @property
    def keeps_rollouts(self) -> bool:
        """Whether every sample is saved with its tokens, log-probs, masks and versions."""
        return self.save_rollouts or self.mode == "rollout"
