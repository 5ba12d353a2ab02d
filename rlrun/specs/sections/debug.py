"""`[debug]`: run only a part of a job."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section

DebugMode = Literal["rollout", "train", "eval"]


class ProfileSpec(Section):
    """Steps that are recorded in detail."""

    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Steps, counted from 1. For each of them the run's folder `profile/step-N` gets a torch profiler trace
    of each trainer rank, a record of its GPU memory, and a timeline of the whole job for ui.perfetto.dev.
    These steps take longer than others."""


class DebugSpec(Section):
    """Runs rollouts or an evaluation alone, a trainer without rollouts, or one step again; records steps."""

    mode: DebugMode | None = None
    """The part of the job to run. `rollout`: generate, score, filter and save samples with the initial model,
    without a trainer. `train`: train on the saved samples of `rollouts`, without engines. `eval`: evaluate
    the model on `[[eval.datasets]]` and save every sample, without a trainer; `rlrun eval` sets it. None: the
    whole job."""
    rollouts: Annotated[str | None, PathMarker()] = None
    """Folder of the run that saved the samples, for `mode = "train"`."""
    step: int | None = Field(default=None, ge=1)
    """Repeat only this step of the run in `rollouts`, starting from that run's checkpoint of the step before.
    None: train on all saved steps, starting from the initial model."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the groups in `rollouts` that each step trains on, at least one: groups at equal distances
    in the order of their prompts. The others are left out."""
    save_rollouts: bool = False
    """Save every sample of every step with tokens, log-probs, masks and versions in the run's `rollouts/`,
    for a later `mode = "train"`. `mode = "rollout"` and `"eval"` always save them."""

    profile: ProfileSpec = ProfileSpec()
    """Steps that are recorded in detail."""

    @property
    def keeps_rollouts(self) -> bool:
        """Whether every sample is saved with its tokens, log-probs, masks and versions."""
        return self.save_rollouts or not self.trains

    @property
    def trains(self) -> bool:
        """Whether the job has a trainer."""
        return self.mode not in ("rollout", "eval")
