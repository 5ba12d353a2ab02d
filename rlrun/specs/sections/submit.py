"""`[submit]`: what runs the job on other machines, and what it is asked for."""

from pydantic import Field

from rlrun.specs.sections.section import PluginSection


class SubmitSpec(PluginSection):
    """How `rlrun submit` hands the job to a scheduler, or to machines without one; the launcher's parameters
    are further keys of this table. `rlrun launch` ignores this table."""

    type: str = "slurm"
    """Name of the launcher (`rlrun plugins list`)."""
    hours: float | None = Field(default=None, gt=0)
    """Time limit of one attempt, in hours. Before it ends the job saves, and is queued again to continue.
    None: the scheduler's default. Only for `slurm`."""
    cpus: int | None = Field(default=None, ge=1)
    """CPU cores of each node. None: as many as the node's ranks and engines have threads
    (`cluster.threads`)."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Host memory of each node, in GB. None: the scheduler's default. Not for `ssh`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the job on each node. They are written to files: no secrets."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables that hold secrets. Their values are taken from the environment of `rlrun
    submit`, and with `kuberay` from a secret of Kubernetes; they are not written to the job's files."""
    setup: tuple[str, ...] = ()
    """Shell commands that run before rlrun, such as `module load cuda`. Not for `kuberay`."""
    python: str | None = None
    """The Python interpreter with rlrun on the nodes. None: the path of the one that runs `rlrun submit`, and
    with `kuberay` and `skypilot` the image's `python3`."""
    idle_attempts: int = Field(default=3, ge=1)
    """Number of attempts in a row that save no new step, after which the job is not queued again."""
