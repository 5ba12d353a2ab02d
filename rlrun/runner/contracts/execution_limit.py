"""Limits how many executions of a rollout run at once, of training and evaluations together."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext


class ExecutionLimit:
    """The executions that may run at once."""

    def __init__(self, number: int | None = None) -> None:
        """`number`: None for no limit."""
        self._number = number
        self._slots = None if number is None else asyncio.Semaphore(number)

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Waits for room, which an execution takes during the block."""
        return nullcontext() if self._slots is None else self._slots

    def groups(self, prompts: int, samples: int) -> int:
        """Returns how many of `prompts` prompts with `samples` executions each run at once, at least one."""
        return prompts if self._number is None else max(1, self._number // samples)
