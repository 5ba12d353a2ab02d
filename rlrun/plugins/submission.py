"""What a launcher knows of a job, and what it tells about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


class SchedulerError(ValueError):
    """A scheduler's tool is missing or refuses a call; the message has its own words."""


Phase = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to hand to a scheduler: what the spec and the plan say of it.

    Example: `Submission("math", Path("/home/u/runs/.submitted/math"), Path("/home/u"), nodes=2, gpus=8,
    cpus=64)`
    """

    name: str
    """Name of the run."""
    folder: Path
    """Folder of the submission's files, on a file system that all nodes share."""
    working_folder: Path
    """Where `rlrun submit` was called; the job runs there."""
    nodes: int
    gpus: int
    """Of each node."""
    cpus: int
    """Of each node."""
    python: str | None = None
    """The interpreter on the nodes; None: the one of this process, or that of a container's image."""
    memory_gb: float | None = None
    """Of each node; None: not known."""
    hours: float | None = None
    """Time limit of an attempt; None: not known."""
    stop_seconds: float = 60.0
    """How long the job may take to save when it is asked to stop."""
    idle_attempts: int = 3
    """Attempts in a row without a new step, after which the job is not started again."""
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    """Names of variables whose values are secret."""
    setup: Sequence[str] = ()
    ray_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for the servers of a Ray cluster that the scheduler starts itself."""


@dataclass(frozen=True, slots=True)
class SubmittedState:
    """What a scheduler says of a job."""

    phase: Phase
    about: str
    """The scheduler's own words: `PENDING (Priority)`, `RUNNING on n[1-2]`."""
