"""Sets how many threads a process of the job computes with."""

import os


def thread_variables(count: int) -> dict[str, str]:
    """Returns the environment variables that OpenMP reads when it is loaded.

    By default OpenMP's threads spin for milliseconds while they wait. If another process needs their cores, a
    step then takes ten times as long (measured on two busy cores). Unless the user sets one of OpenMP's own
    variables, threads spin for microseconds.
    """
    spin = {} if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() else {"GOMP_SPINCOUNT": "1000"}
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), **spin}
