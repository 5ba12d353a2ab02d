"""Cases for tests/test_gpu_kit.py that fail in every way a case can."""

import os
import signal
import sys
import time
from collections.abc import Mapping

from benchmarks.gpu.results import Case, Goal, Measurement, Skipped


def passes() -> Measurement:
    return Measurement({"mfu": 0.5}, (Goal("mfu", ">=", 0.4),))


def misses() -> Measurement:
    return Measurement({"mfu": 0.1}, (Goal("mfu", ">=", 0.4),))


def raises() -> Measurement:
    raise RuntimeError("CUDA error: unknown error")


def lacks() -> Measurement:
    raise Skipped("it needs two GPUs")


def dies() -> Measurement:
    print("these are its last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return passes()


def hangs() -> Measurement:
    time.sleep(600)
    return passes()


CASES: Mapping[str, Case] = {
    "passes": passes,
    "misses its goal": misses,
    "raises": raises,
    "lacks something": lacks,
    "dies": dies,
    "hangs": hangs,
}
