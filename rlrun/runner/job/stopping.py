"""A request to stop a run, and what is given up or finished for it.

    signal ──▶ ask ─┬▶ rollout, log-probs, evaluation: given up ───────────┐
                    ├▶ an optimizer step has begun: the step is finished ──┴▶ checkpoint ──▶ end
                    └▶ start, export: there is nothing to save ───────────────────────────▶ end

Until a step's first optimizer step the trainer still has the state after the step before, so that a
checkpoint of that one can be written. From then on a run can only go on from the end of the step.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from rlrun.runner.host.background import cancel_all

Result = TypeVar("Result")
Moment = Literal["outside", "preparing", "committed", "evaluating"]
"""What the loop does: it does not run; work that can be given up; work that must be finished; evaluation."""


class Stopped(Exception):
    """The run was asked to stop, and gave up what it was doing."""


class StopRequest:
    """Whether a run was asked to stop, as the loop sees it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.moment: Moment = "outside"
        self.step = 0
        """The step under way."""
        self.cause: str | None = None
        """Why the run has to stop, where nobody asked it to."""

    @property
    def asked(self) -> bool:
        """Whether the run was asked to stop."""
        return self._event.is_set()

    @property
    def by_user(self) -> bool:
        """Whether somebody asked the run to stop, rather than something that it needs is lost."""
        return self.asked and self.cause is None

    @property
    def heard(self) -> bool:
        """Whether the loop runs, and saves the last finished step before it ends."""
        return self.moment != "outside"

    def ask(self) -> None:
        """Ask the run to stop."""
        self._event.set()

    def check(self) -> None:
        """Raise Stopped where the run was asked to stop."""
        if self.asked:
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The loop runs inside this block."""
        self.moment = "committed"
        try:
            yield
        finally:
            self.moment = "outside"

    async def unless_asked(self, work: Coroutine[Any, Any, Result], moment: Moment, step: int) -> Result:
        """The result of `work`, which belongs to `step`. Stopped, and the work is cancelled, when the run is
        asked to stop first.
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


def announcement(moment: Moment, step: int, seconds: float) -> str:
    """What the user is told when the run is asked to stop during `step`."""
    if moment == "outside":
        return "stopping; once more to stop at once"
    if moment == "evaluating":
        what = "putting the evaluation off" + (f" and saving step {step}" if step else "")
    elif moment == "preparing":
        what = f"giving up step {step}" + (f" and saving step {step - 1}" if step > 1 else "")
    else:
        what = f"finishing step {step} and saving"
    return f"stopping: {what} (at most {seconds:g} s; once more to stop at once)"


def outcome(finished: int, saved: int | None) -> str:
    """What a run that ended early has on disk to go on from; `finished` and `saved` are steps."""
    if saved is None:
        lost = "no step was finished" if not finished else f"steps 1 to {finished} are lost"
        return f"nothing was saved ({lost}): --resume begins again from the start"
    resumes = f"--resume goes on from step {saved} (checkpoints/step-{saved})"
    return resumes if saved >= finished else f"steps after {saved} were not saved: {resumes}"
