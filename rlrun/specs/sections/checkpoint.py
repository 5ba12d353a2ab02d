"""`[checkpoint]`: what is saved, when, and how many checkpoints are kept."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section


def _kind(value: Any) -> str:
    return "word" if isinstance(value, str) else "number"


Kept = Annotated[
    Annotated[int, Field(ge=1), Tag("number")] | Annotated[Literal["all"], Tag("word")], Discriminator(_kind)
]
"""A wrong value is one error, of the kind that was written."""


class CheckpointSpec(Section):
    """Checkpoints hold everything a run needs to continue exactly where it stopped."""

    interval: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. None: a single checkpoint at the end of the run."""
    keep: Kept = 2
    """Number of complete checkpoints to keep; older ones are deleted. `all`: none is deleted."""
    keep_best: str | None = None
    """Also keep the checkpoint of the best evaluation: `eval/held-out/reward`, or another metric of a dataset
    of `[eval]` of which more is better. A step with the best evaluation so far is saved although no
    checkpoint is due, it is kept beside the `keep` newest ones, and the final model is that of the best step.
    The evaluation before training does not count. None: the final model is that of the last step."""
    asynchronous: bool = False
    """Continue training while a checkpoint is written, from a copy in host memory. This needs host memory for
    that copy."""
    start_from: Annotated[str | None, PathMarker()] = None
    """Folder of a checkpoint of another run, `runs/first/checkpoints/step-40`, with whose weights this run
    begins; `rlrun launch --from first@40` sets it. Steps, data and the schedule of the learning rate begin
    anew. Weights are those of the policy, and of the critic where both runs have one; a reference is still
    the model of `model.path`. None: the run begins with the weights of `model.path`."""
    start_optimizer: bool = True
    """The optimizer's state is taken from `start_from`, too. false: it is empty, as in a run of a new model;
    the other run may then have had another optimizer."""
    stop_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a job may take to finish training its step and save a checkpoint after it was told to stop
    (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, `rlrun stop`). After that it ends with the checkpoints that it has."""
    export_hf: bool = True
    """Also write the final model as a Hugging Face folder, `runs/<name>/model`."""
    export_interval: int | None = Field(default=None, ge=1)
    """Steps between models that are written as Hugging Face folders while the run trains,
    `runs/<name>/models/step-N`; none of them is deleted. None: only the final model is written."""
