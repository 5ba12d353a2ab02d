"""The checks of the kit, in the order of their worth, each with its limit in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

TOTAL_SECONDS = 540
"""What all checks that any GPU host can run take at most: some machines are lent for ten minutes."""
UNPACK_SECONDS = 10
"""What installing the packed wheels takes on a bare machine."""


@dataclass(frozen=True, slots=True)
class Check:
    """A group of cases that one process runs, because they share their imports or their model."""

    name: str
    module: str
    """Has `CASES`, a function for each case by the case's name; and `close` if its cases share something that
    has to be closed."""
    seconds: int
    """Its process is killed after so long. Cases that were finished keep their results."""
    cases: tuple[str, ...] = ()
    """The cases of the module to run; none named: all."""
    beyond: bool = False
    """It needs more than one GPU and the packed wheels, or more time: it comes after the others, and its
    limit is not part of TOTAL_SECONDS."""


CHECKS: Sequence[Check] = (
    Check("kernels", "benchmarks.gpu.kernels", 20),
    Check("parity", "benchmarks.gpu.parity", 95),
    Check("step 4B", "benchmarks.gpu.step", 60, ("4B",)),
    Check("step 0.6B", "benchmarks.gpu.step", 95, ("0.6B", "overhead", "parking", "weights", "saving")),
    Check("host", "benchmarks.gpu.host", 35),
    Check("native engine", "benchmarks.gpu.generation", 60),
    Check("job", "benchmarks.gpu.job", 70, ("native",)),
    Check("step MoE", "benchmarks.gpu.step", 25, ("MoE",)),
    Check("step variants", "benchmarks.gpu.step", 65, ("offload optimizer", "offload all", "compile")),
    Check("step compiled", "benchmarks.gpu.step", 240, ("4B compiled", "float8"), beyond=True),
    Check("ranks", "benchmarks.gpu.ranks", 300, beyond=True),
    Check("broadcast", "benchmarks.gpu.broadcast", 120, beyond=True),
    Check("FlashAttention 3", "benchmarks.gpu.flash3", 120, beyond=True),
    Check("SGLang", "benchmarks.gpu.job", 400, ("SGLang start", "SGLang"), beyond=True),
    Check("true on-policy", "benchmarks.gpu.job", 300, ("exact",), beyond=True),
)
