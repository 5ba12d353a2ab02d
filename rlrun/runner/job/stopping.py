"""A request to stop a run, and what the run cancels or finishes before it ends.

    signal ──▶ ask ─┬▶ rollout, log-probs, evaluation: cancelled ──────────┐
                    ├▶ an optimizer step has begun: the step is finished ──┴▶ checkpoint ──▶ end
                    └▶ start, export: there is nothing to save ───────────────────────────▶ end

Until a step's first optimizer step, the trainer still has the state after the step before, so that a
checkpoint of that step can be written. After that, the run can only continue from the end of the step.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from rlrun.runner.host.background import cancel_all

Result = TypeVar("Result")
Moment = Literal["outside", "preparing", "committed", "evaluating"]
"""What the loop does: nothing, work that can be cancelled, work that must be finished, or an evaluation."""


class Stopped(Exception):
    """The run was asked to stop, and its current work was cancelled."""


class StopRequest:
    """Asks the loop to stop, and says what the loop is doing."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.moment: Moment = "outside"
        self.step = 0
        """The current step."""
        self.by_scheduler = False
        """Whether a scheduler asked, which will start the job again."""
        self.cause: str | None = None
        """Why the run has to stop, if neither the user nor a scheduler asked for it."""

    @property
    def asked(self) -> bool:
        """Whether the run was asked to stop."""
        return self._event.is_set()

    @property
    def from_outside(self) -> bool:
        """Whether the user or a scheduler asked the run to stop, not a failure that forces it to."""
        return self.asked and self.cause is None

    @property
    def will_save(self) -> bool:
        """Whether the loop is running, and so will save the last finished step before it ends."""
        return self.moment != "outside"

    def ask(self, *, by_scheduler: bool = False) -> None:
        """Asks the run to stop."""
        self.by_scheduler = by_scheduler
        self._event.set()

    def check(self) -> None:
        """Raises Stopped if the run was asked to stop."""
        if self.asked:
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Marks the block in which the loop runs."""
        self.moment = "committed"
        try:
            yield
        finally:
            self.moment = "outside"

    async def unless_asked(self, work: Coroutine[Any, Any, Result], moment: Moment, step: int) -> Result:
        """Returns the result of `work`, which is part of `step`.

        If the run is asked to stop first, cancels the work and raises Stopped.
        """
        if self.asked:
            work.close()
            raise Stopped
        working, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._event.wait())
        before, self.moment, self.step = self.moment, moment, step
        try:
            await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise Stopped
        finally:
            self.moment = before
            await cancel_all([working, asked])


def announcement(moment: Moment, step: int, seconds: float, *, by_scheduler: bool = False) -> str:
    """Returns the message that the user sees when the run is asked to stop during `step`."""
    asked = "stopping for the scheduler (SIGUSR1)" if by_scheduler else "stopping"
    once_more = "Ctrl-C" if by_scheduler else "once more"
    if moment == "outside":
        return f"{asked}; {once_more} to stop at once"
    if moment == "evaluating":
        action = "postponing the evaluation" + (f" and saving step {step}" if step else "")
    elif moment == "preparing":
        action = f"cancelling step {step}" + (f" and saving step {step - 1}" if step > 1 else "")
    else:
        action = f"finishing step {step} and saving"
    return f"{asked}: {action} (at most {seconds:g} s; {once_more} to stop at once)"


def resume_hint(finished: int, saved: int | None, run: str) -> str:
    """Says how to continue a run, and from where; `finished` and `saved` are the last such steps.

    `run` names the run as commands take it.
    """
    if saved is None:
        lost = "no step was finished" if not finished else f"steps 1 to {finished} are lost"
        return f"nothing was saved ({lost}): rlrun resume {run} starts from the beginning"
    resumes = f"rlrun resume {run} continues from step {saved} (checkpoints/step-{saved})"
    return resumes if saved >= finished else f"steps after {saved} were not saved: {resumes}"
