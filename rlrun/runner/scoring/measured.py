"""Reads the score from the value that a reward returned."""

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.plugins.types import Rewarded
from rlrun.runner.scoring.protocol import RewardSetup

LARGEST_REWARD = 1e30
"""The largest magnitude of a reward: sums, squares and float32 tensors can hold it."""


class MissingKey(Exception):
    """The spec's `key` does not match what the reward returns: an error of the spec, not of one sample."""


def usual_key(rewarded: object, setup: RewardSetup) -> str | None:
    """Returns the key of the score in a returned table, where the spec names none; None if it is missing."""
    return setup.usual_key if isinstance(rewarded, Mapping) and setup.usual_key in rewarded else None


def measured(rewarded: Rewarded, key: str | None) -> float:
    """Returns the score of a reward; MissingKey where `key` does not match it, else ValueError."""
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
    reward: Any = value  # it may be a Fraction or a whole number that no float can hold
    if not -LARGEST_REWARD <= reward <= LARGEST_REWARD:  # NaN makes it false
        raise ValueError(f"returned {str(reward)[:40]}; rewards are at most {LARGEST_REWARD:g} in magnitude")
    return float(reward)
