"""`[checkpoint]`: what is saved, when, and how much of it is kept."""

from pydantic import Field

from rlrun.specs.sections.section import Section


class CheckpointSpec(Section):
    """Everything a run needs to go on exactly where it stopped."""

    interval: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. None: one at the end."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest complete checkpoints stay."""
    asynchronous: bool = False
    """Training goes on while a checkpoint is written, from a copy in host memory."""
    stop_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a job which is asked to stop (Ctrl-C, SIGTERM, SIGHUP, `rlrun stop`) may take to end the
    training of its step and to save; past them it ends with the checkpoints that it has."""
    export_hf: bool = True
    """Write the final model as an HF folder too: `runs/<name>/model`."""
