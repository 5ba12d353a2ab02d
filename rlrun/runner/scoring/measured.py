"""Reads the score from the value that a reward returned."""

import math
import numbers
from collections.abc import Mapping

import numpy as np

from rlrun.plugins.types import Rewarded
from rlrun.runner.scoring.protocol import RewardSetup


class MissingKey(Exception):
    """The spec's `key` does not match what the reward returns: an error of the spec, not of one sample."""


def usual_key(rewarded: object, setup: RewardSetup) -> str | None:
    """Returns the key of the score in a returned table, where the spec names none; None if it is missing."""
    return setup.usual_key if isinstance(rewarded, Mapping) and setup.usual_key in rewarded else None


def measured(rewarded: Rewarded, key: str | None) -> float:
    """Returns the finite score of a reward; MissingKey where `key` does not match it, else ValueError."""
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
