"""`[fault_tolerance]`: which failures a job survives."""

from pydantic import Field

from rlrun.specs.sections.section import Section


class FaultToleranceSpec(Section):
    """How often engines, the trainer and executions are started again when they fail."""

    engine_restarts: int = Field(default=3, ge=0)
    """Number of engine restarts, summed over all engines of the job. Open requests of a restarted engine are
    sent again. 0: an engine that dies ends the job."""
    engine_timeout: float = Field(default=60.0, gt=0)
    """Seconds without a successful health check after which an engine counts as hung and is killed."""
    node_timeout: float = Field(default=300.0, ge=0)
    """Seconds that a job waits for another node when one of its nodes is lost. After that the job ends, and
    `--resume` continues it. With another node, the processes of the lost one are restarted there."""
    collective_timeout: float = Field(default=600.0, gt=0)
    """Seconds that trainer ranks wait for one another in a pass or an optimizer step. When one of them hangs,
    the others end after this time, and all are restarted. They wait at least 30 minutes while they load,
    compile, save and hand over weights, and longer for large models."""
    trainer_restarts: int = Field(default=3, ge=0)
    """Number of times that all trainer ranks are restarted after one of them died or hung. The job continues
    from its last checkpoint. 0: a rank that dies ends the job."""
    trainer_timeout: float = Field(default=60.0, gt=0)
    """Seconds without a sign of life after which a trainer rank counts as hung and is killed."""
    execution_retries: int = Field(default=2, ge=0)
    """Number of times that an execution of the rollout runs again after a failure of its infrastructure (a
    sandbox that is gone, a service that does not answer, a program that was killed, a missing image), after
    pauses of about 2, 10, 50, … seconds. After that it is lost: it is counted, and has no reward. A reward
    with such a failure is computed as often."""
