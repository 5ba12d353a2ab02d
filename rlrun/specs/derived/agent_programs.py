"""Limits how many programs of an agent with a `command` run at once on the driver's host; pure."""

from dataclasses import dataclass

from rlrun.specs.sections.rollout import RolloutFunctionSpec

_PER_CORE = 8
"""Programs per core. An agent waits for the policy most of the time, but starts an interpreter."""
_MEMORY_SHARE = 0.5
"""Share of the host's memory for programs; the rest is for the ranks, engines and rewards."""
_PROGRAM_BYTES = 256 << 20
"""Memory of one program: a Python interpreter with a client of the policy takes 60 to 200 MiB."""


@dataclass(frozen=True, slots=True)
class ProgramLimit:
    """How many programs run at once, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"at most {self.number} programs of the agent run at once ({self.reason})"


def program_limit(function: RolloutFunctionSpec, cores: int, memory: int) -> ProgramLimit | None:
    """Returns the limit on a host with so many cores and bytes of memory; None without any.

    Training and its evaluations share the limit; an evaluation dataset with a `function` has a limit for it.
    The deadline of an execution begins when its program may start.
    """
    if function.type != "agent":
        return None
    own = function.params.get("max_programs")
    if isinstance(own, int):
        return ProgramLimit(own, "rollout.function.max_programs")
    if function.params.get("command") is None:
        return None
    by_cores, by_memory = _PER_CORE * cores, int(_MEMORY_SHARE * memory) // _PROGRAM_BYTES
    if by_cores <= by_memory:
        return ProgramLimit(by_cores, f"{_PER_CORE} per core of {cores}; rollout.function.max_programs")
    gibibytes = memory / 2**30
    reason = f"half of {gibibytes:.0f} GiB, 256 MiB for each; rollout.function.max_programs"
    return ProgramLimit(max(1, by_memory), reason)
