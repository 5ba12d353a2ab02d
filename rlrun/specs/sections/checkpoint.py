"""`[checkpoint]`: what is saved, when, and how many checkpoints are kept."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from rlrun.models.object_store import address_fault, is_address
from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section


def _kind(value: Any) -> str:
    return "word" if isinstance(value, str) else "number"


def _checked_address(value: str) -> str:
    if not is_address(value):
        raise ValueError("must be an address such as s3://bucket/folder, gs://, az:// or file:///folder")
    if (fault := address_fault(value)) is not None:
        raise ValueError(fault)
    return value


_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _checked_repository(value: str) -> str:
    if not _REPOSITORY.fullmatch(value):
        raise ValueError('must be a repository on the hub, "organisation/name"')
    return value


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
    optimizer: bool = True
    """Checkpoints have the optimizer's state, two thirds of their size with AdamW. false: a resumed run, and
    one whose trainer rank died, continues with an empty optimizer. Nothing is lost by that with
    `trainer.reset_optimizer = "rollout"`."""
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
    mirror: Annotated[str, AfterValidator(_checked_address)] | None = None
    """Address of an object store, `s3://bucket/folder` (`gs://`, `az://`, `file:///folder`), to which every
    checkpoint is uploaded while training goes on, with what else a run needs to continue, into the folder of
    the run's name. The same checkpoints are kept there as here. `rlrun launch --resume` restores the run from
    it on a machine that does not have it. Credentials come from the environment (docs/storage.md). None:
    checkpoints are only in the run's folder."""
    mirror_required: bool = False
    """A checkpoint that cannot be uploaded ends the job. false: it is reported, and training continues."""
    stop_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a job may take to finish training its step, save a checkpoint and upload it after it was
    told to stop (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, `rlrun stop`). After that it ends with the checkpoints
    that it has."""
    export_hf: bool = True
    """Also write the final model as a Hugging Face folder, `runs/<name>/model`."""
    push: Annotated[str, AfterValidator(_checked_repository)] | None = None
    """Repository on the Hugging Face hub, `organisation/name`, to which the final model is uploaded, with a
    model card from the spec and its results. One that does not exist is created as a private one. The token
    is that of `hf auth login` or `HF_TOKEN`. None: the model is only in the run's folder."""
    export_interval: int | None = Field(default=None, ge=1)
    """Steps between models that are written as Hugging Face folders while the run trains,
    `runs/<name>/models/step-N`; none of them is deleted. None: only the final model is written."""
