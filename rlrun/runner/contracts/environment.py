"""The environment of a job's executions: how often they run again, and when it fails as a whole."""

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.plugins.failures import Failure
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutFunctionSpec

WINDOW = 32
"""Number of executions, the newest ones, of which nearly all must fail."""
MAX_RESULTS = WINDOW // 10
"""Number of executions with a result among these up to which the environment fails as a whole."""
FIRST_PAUSE, PAUSE_FACTOR = 2.0, 5.0
"""Seconds before an execution runs again, and their growth: 2, 10 and 50 s are a minute for a service."""
_SHOWN_REASONS = 3


class Environment:
    """Counts how the executions of one environment end, in training and evaluations together.

    It is the circuit breaker of the environment: `record` ends the job once nearly all executions fail.
    """

    def __init__(self, name: str = "the rollout", retries: int = 0) -> None:
        """`name`: as a message begins, such as `the agent's program python agent.py`. `retries`: how often an
        execution may run again.
        """
        self._name = name
        self._retries = retries
        self._endings: deque[Failure | None] = deque(maxlen=WINDOW)
        self._reasons: dict[str, None] = {}

    def pause_before_retry(self, failure: Failure, attempt: int) -> float | None:
        """Returns the seconds until the execution runs again; None if it does not.

        `attempt` is the number of times that it has run again already. The pauses vary by half, so that not
        all executions come back to a service at once.
        """
        if not failure.is_infrastructure or attempt >= self._retries:
            return None
        return FIRST_PAUSE * PAUSE_FACTOR**attempt * random.uniform(0.5, 1.5)

    def record(self, failure: Failure | None, reason: str = "") -> None:
        """Records how an execution ended: with a result (None), or with a failure.

        Raises JobError if the environment fails as a whole. Failures of engines say nothing about it.
        """
        if failure is Failure.ENGINE:
            return
        self._endings.append(failure)
        if failure is None or not failure.is_of_environment:
            return
        self._reasons.pop(reason, None)
        self._reasons[reason] = None
        for oldest in list(self._reasons)[:-_SHOWN_REASONS]:
            del self._reasons[oldest]
        if fails_as_a_whole(self._endings):
            raise self._error()

    def _error(self) -> JobError:
        types = Counter(failure for failure in self._endings if failure is not None)
        counts = ", ".join(f"{count} {failure}" for failure, count in types.most_common())
        again = f", though executions run up to {self._retries} more times" if self._retries else ""
        return JobError(
            f"{self._name} fails as a whole: of the last {WINDOW} executions {sum(types.values())} failed "
            f"({counts}){again}. Repair what the last errors name, and resume the run. Mistakes of the "
            "policy are PolicyError (docs/agents.md#failures)",
            "\n".join(self._reasons),
            code=Code.ENVIRONMENT,
        )


def name_of(function: RolloutFunctionSpec) -> str:
    """Returns the name of a rollout's environment, as messages begin with it."""
    if function.type != "agent":
        return f"the rollout {function.type!r}"
    params: Mapping[str, Any] = function.params
    if (agent := params.get("agent")) is not None:
        return f"the agent {agent['type']!r}"
    return f"the agent's program {' '.join(params['command'])!r}"


def fails_as_a_whole(endings: Sequence[Failure | None]) -> bool:
    """Returns whether nearly all of the newest `WINDOW` executions failed through their environment."""
    results = sum(failure is None or not failure.is_of_environment for failure in endings)
    return len(endings) >= WINDOW and results <= MAX_RESULTS
