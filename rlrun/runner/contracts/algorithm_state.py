"""What an algorithm remembers from step to step, if it needs to: nothing for most algorithms."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from rlrun.plugins.protocols import Algorithm, StatefulAlgorithm


def remembers(algorithm: Algorithm) -> StatefulAlgorithm | None:
    """Returns the algorithm, if it has a state."""
    return cast("StatefulAlgorithm", algorithm) if algorithm.needs.state else None


def state_of(algorithm: Algorithm) -> dict[str, Any]:
    """Returns a copy of its state, as JSON values; empty without one."""
    stateful = remembers(algorithm)
    return {} if stateful is None else deepcopy(dict(stateful.state()))


def restore_algorithm(algorithm: Algorithm, state: Mapping[str, Any]) -> None:
    """Restores a saved state; an algorithm without one begins with its parameters."""
    stateful = remembers(algorithm)
    if stateful is not None and state:
        stateful.restore(state)


def step_values(algorithm: Algorithm) -> Mapping[str, float]:
    """Returns the algorithm's numbers of the step; none without a state."""
    stateful = remembers(algorithm)
    return {} if stateful is None else stateful.step_values()
