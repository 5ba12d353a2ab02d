"""Reads which instructions this host's processor has, or those of the older one that it pretends to be."""

import os
import re
from pathlib import Path

PRETENDED_SET = "RLRUN_CPU_ISA"
"""For developers: the name of an instruction set that this process and its children pretend to have
(rlrun.runner.host.instruction_sets)."""
_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Linux's names of the instructions that multiply in bfloat16, on x86 and ARM."""


def multiplies_bfloat16() -> bool:
    """Returns whether this host multiplies in bfloat16 without emulation; False if that is unknown.

    No set that can be pretended has these instructions.
    """
    return os.environ.get(PRETENDED_SET, "native") in ("", "native") and has_bfloat16(_cpuinfo())


def has_bfloat16(cpuinfo: str) -> bool:
    """Returns whether a processor multiplies in bfloat16 without emulation, by the text of /proc/cpuinfo."""
    return not _BFLOAT16.isdisjoint(_listed(cpuinfo))


def cpu_flags() -> list[str]:
    """Returns the instructions that the first processor lists; none where Linux lists them otherwise."""
    return _listed(_cpuinfo())


def _listed(cpuinfo: str) -> list[str]:
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return [] if line is None else line[1].split()


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text("utf-8", "replace")
    except OSError:
        return ""
