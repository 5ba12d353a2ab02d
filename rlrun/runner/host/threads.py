"""Sets how many threads a process of the job computes with."""

import os

_SPINNING = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}
"""How OpenMP's threads wait for one another: they spin for 50 to 150 µs, then sleep.

Sleeping at once, a thread takes 50 µs to wake, which is as long as most operators of a decoding pass take. By
default, threads spin for milliseconds (LLVM's and Intel's OpenMP: 200); if another process needs their cores,
a step takes ten times as long (measured on two busy cores). GNU's OpenMP ignores GOMP_SPINCOUNT, and sleeps
almost at once, in a process where several threads compute, as in every one of ours, unless the policy is
active. KMP_BLOCKTIME, in ms, is how LLVM and Intel call it.
"""


def thread_variables(count: int) -> dict[str, str]:
    """Returns the environment variables that OpenMP reads when it is loaded.

    How threads wait is left to the user's own variables where one of OpenMP's is set.
    """
    spinning = {} if _SPINNING.keys() & os.environ.keys() else _SPINNING
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), **spinning}
