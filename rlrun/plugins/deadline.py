"""How long a reward may take for a sample, for rewards that can end what they run in time."""

import os

VARIABLE = "RLRUN_SCORING_TIMEOUT"


def scoring_timeout() -> float | None:
    """`scoring.timeout` of the job whose reward process this is; None outside of one."""
    seconds = os.environ.get(VARIABLE)
    return None if seconds is None else float(seconds)
