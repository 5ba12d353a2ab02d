"""The number in what a reward returns."""

import math
import numbers
from collections.abc import Mapping

import numpy as np

from rlrun.plugins.types import Rewarded
from rlrun.runner.scoring.protocol import RewardSetup


class MissingKey(Exception):
    """The spec's `key` and what the reward returns do not fit: the spec is wrong, not the sample."""


def usual_key(rewarded: object, setup: RewardSetup) -> str | None:
    """The entry of a table that counts where the spec names none."""
    return setup.usual_key if isinstance(rewarded, Mapping) and setup.usual_key in rewarded else None


def measured(rewarded: Rewarded, key: str | None) -> float:
    """The finite number in a reward's answer; MissingKey where `key` does not fit it, else ValueError."""
    value: object = rewarded
    if isinstance(rewarded, Mapping):
        entries = ", ".join(map(str, rewarded)) or "nothing"
        if key is None:
            raise MissingKey(f"returns several values ({entries}); choose one with `key`")
        if key not in rewarded:
            raise MissingKey(f"returns {entries}, but `key` is {key!r}")
        value = rewarded[key]
    elif key is not None:
        raise MissingKey(f"returns one number, so `key` ({key!r}) has nothing to choose from; remove it")
    if not isinstance(value, numbers.Real | np.bool_):
        raise ValueError(f"returned {type(value).__name__} {value!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}")
    return number
