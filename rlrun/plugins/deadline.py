"""Tells rewards how long they may take for a sample, so that they can stop what they run in time."""

import os

VARIABLE = "RLRUN_SCORING_TIMEOUT"


def scoring_timeout() -> float | None:
    """Returns `scoring.timeout` of the job that this reward process belongs to; None outside of a job."""
    seconds = os.environ.get(VARIABLE)
    return None if seconds is None else float(seconds)
