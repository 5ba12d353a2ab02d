"""The vector instructions that a job's processes compute with: this processor's, or those of an older one.

Our own C++ is compiled for them (`compiler_flag`). torch and oneDNN choose their kernels by the processor, or
by variables that `limit_libraries` sets and child processes inherit.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.specs.processor import PRETENDED_SET, cpu_flags


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """How each part of a process is told which instructions it may use."""

    march: str
    """The compiler's name of the processor."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of torch and oneDNN; none: they use what the processor has."""
    needs: str | None = None
    """What `/proc/cpuinfo` calls the newest of these instructions; None: every processor has them."""


INSTRUCTION_SETS: Mapping[str, InstructionSet] = {
    "native": InstructionSet("native"),
    "avx512": InstructionSet(
        "x86-64-v4", {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "avx512f"
    ),
    "avx2": InstructionSet(
        "x86-64-v3", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "avx2"
    ),
    "plain": InstructionSet(
        "x86-64-v2", {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}, "sse4_2"
    ),
}
"""`avx512` has neither bfloat16 instructions nor AMX, as processors from before 2020."""


def compiler_flag() -> str:
    """Returns the compiler's flag for the instruction set in force.

    Raises ValueError if this processor lacks it.
    """
    return f"-march={_in_force().march}"


def limit_libraries() -> None:
    """Has torch and oneDNN use no more than the instruction set in force, in this process and its children.

    It has to be called before torch computes anything. Raises ValueError if this processor lacks the set.
    """
    os.environ.update(_in_force().libraries)


def runs(name: str) -> bool:
    """Returns whether this processor has the instructions of a set."""
    needs = INSTRUCTION_SETS[name].needs
    return needs is None or needs in cpu_flags()


def _in_force() -> InstructionSet:
    name = os.environ.get(PRETENDED_SET) or "native"
    chosen = INSTRUCTION_SETS.get(name)
    if chosen is None:
        raise ValueError(f"{PRETENDED_SET}={name}: choose one of {', '.join(INSTRUCTION_SETS)}, or unset it")
    if not runs(name):
        raise ValueError(f"{PRETENDED_SET}={name}: this processor has no {chosen.needs}; choose an older set")
    return chosen
