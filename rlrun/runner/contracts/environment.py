"""The environment of a job's executions: how often they run again, and when it fails as a whole."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.plugins.failures import Failure
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutFunctionSpec

MIN_EXECUTIONS, MIN_PROMPTS = 32, 4
"""Number of executions of which nearly all must fail: at least so many, and those of so many prompts, because
a row may be broken for all of its executions."""
MAX_RESULTS = 0.1
"""Share of these that may have a result if the environment fails as a whole."""
FIRST_PAUSE, PAUSE_FACTOR = 2.0, 5.0
"""Seconds before an execution runs again, and their growth: 2, 10 and 50 s are a minute for a service."""
_SHOWN_REASONS = 3


@dataclass(slots=True)
class _Block:
    """Executions that began one after the other."""

    ended: int = 0
    failures: Counter[Failure] = field(default_factory=Counter)


class Environment:
    """Counts how the executions of one environment end, in training and evaluations together.

    It is the circuit breaker of the environment: `record` ends the job once nearly all executions of a block
    failed. A block has executions that began one after the other, and counts when all of them have ended.
    Executions that *end* one after the other would be a selection: those that fail at once end first.
    """

    def __init__(self, name: str = "the rollout", retries: int = 0, samples_per_prompt: int = 1) -> None:
        """`name`: as a message begins, such as `the agent's program 'python agent.py'`. `retries`: how often
        an execution may run again.
        """
        self._name = name
        self._retries = retries
        self._block_size = max(MIN_EXECUTIONS, MIN_PROMPTS * samples_per_prompt)
        self._begun = 0
        self._blocks: dict[int, _Block] = {}
        """The blocks in which executions are running, by their number."""
        self._reasons: list[str] = []
        """The last different errors."""

    def begin(self) -> int:
        """Returns the number of an execution that begins; `record` must follow, however it ends."""
        number, self._begun = self._begun, self._begun + 1
        return number

    def pause_before_retry(self, failure: Failure, attempt: int) -> float | None:
        """Returns the seconds until the execution runs again; None if it does not.

        `attempt` is the number of times that it has run again already. The pauses vary by half, so that not
        all executions come back to a service at once.
        """
        if not failure.is_infrastructure or attempt >= self._retries:
            return None
        return FIRST_PAUSE * PAUSE_FACTOR**attempt * random.uniform(0.5, 1.5)

    def record(self, number: int, failure: Failure | None = None, reason: str = "") -> None:
        """Records how an execution ended: with a failure, or with a result or unfinished (None).

        Raises JobError if the environment fails as a whole.
        """
        index = number // self._block_size
        block = self._blocks.setdefault(index, _Block())
        block.ended += 1
        if failure is not None and failure.is_of_environment:
            block.failures[failure] += 1
            kept = [each for each in self._reasons if each != reason]
            self._reasons = [*kept, reason][-_SHOWN_REASONS:]
        if block.ended == self._block_size:
            del self._blocks[index]
            if fails_as_a_whole(block.failures.total(), block.ended):
                raise self._error(block)

    def _error(self, block: _Block) -> JobError:
        counts = ", ".join(f"{count} {failure}" for failure, count in block.failures.most_common())
        again = f", though executions run up to {self._retries} more times" if self._retries else ""
        return JobError(
            f"{self._name} fails as a whole: of {block.ended} executions in a row {block.failures.total()} "
            f"failed ({counts}){again}. Repair what the last errors name, and resume the run. Mistakes of "
            "the policy are PolicyError (docs/agents.md#failures)",
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


def fails_as_a_whole(failed: int, ended: int) -> bool:
    """Returns whether nearly all executions of a block failed through their environment."""
    return failed >= (1 - MAX_RESULTS) * ended
