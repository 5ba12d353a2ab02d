"""`[fault_tolerance]`: what a job survives."""

from pydantic import Field

from rlrun.specs.sections.section import Section


class FaultToleranceSpec(Section):
    """What is started again when it dies or hangs."""

    engine_restarts: int = Field(default=3, ge=0)
    """Times that an engine is started again, all engines of the job together; what it was asked is asked
    again. 0: an engine that dies ends the job."""
    engine_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which an engine that does not say that it is well is taken for hung, and killed."""
    trainer_restarts: int = Field(default=3, ge=0)
    """Times that the trainer, all its ranks, is started again when a rank dies or hangs; the job goes on from
    its last checkpoint. 0: a rank that dies ends the job."""
    trainer_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a trainer rank that does not say that it is there is taken for hung, and killed."""
