"""What one program of an agent may take of the driver's host, and the error of one that takes more."""

from pydantic import Field

from rlrun.plugins.failures import PolicyError
from rlrun.specs.sections.section import Section

MIB = 1 << 20


class ProgramLimits(Section):
    """The most that a program of an agent may take, together with all processes that it starts."""

    memory: int = Field(default=4096, ge=1)
    """MiB of memory of all its processes together."""
    processes: int = Field(default=512, ge=1)
    """Number of its processes."""
    file: int = Field(default=1024, ge=1)
    """MiB of a file that it writes."""
    disk: int = Field(default=4096, ge=1)
    """MiB of all files in the folder of its execution."""
    output: int = Field(default=64, ge=1)
    """MiB of its standard output and error output together."""

    def described(self) -> tuple[str, ...]:
        """Returns each limit in words, for the plan."""
        return (
            f"{self.memory:,} MiB of memory",
            f"{self.processes:,} processes",
            f"{self.file:,} MiB per file",
            f"{self.disk:,} MiB in its folder",
            f"{self.output:,} MiB of output",
        )

    def exceeded(self, *, processes: int, output: int, disk: int, uses_more_memory: bool) -> str:
        """Returns what a program with these values has done too much of; empty if it is within its limits.

        `output` and `disk` are in bytes.
        """
        if uses_more_memory:
            return f"used more than limits.memory = {self.memory} MiB"
        if processes > self.processes:
            return f"had {processes} processes, and limits.processes = {self.processes}"
        if disk > self.disk * MIB:
            return f"had more than limits.disk = {self.disk} MiB of files in its folder"
        if output > self.output * MIB:
            return f"printed more than limits.output = {self.output} MiB"
        return ""


class LimitExceeded(PolicyError):
    """A program exceeded a limit of `rollout.function.limits`: what the policy had it do took too much."""

    def info(self) -> dict[str, float]:
        """Returns what the samples of the execution note."""
        return {**super().info(), "over_limit": 1}
