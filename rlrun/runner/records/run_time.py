"""Counts how much of a run's time was useful since its first launch (its goodput), and what took the rest.

launches, steps, failures ──▶ RunTime, in state.json ──▶ perf/goodput, and a line of `rlrun status`

Goodput as in https://cloud.google.com/blog/products/ai-machine-learning/goodput-metric-as-measure-of-ml-productivity:
the share of the time in which the run made progress that it still has.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e11)]
"""Three thousand years at most, so that sums of a damaged file are finite, too."""
_WORK = ("perf/step_time", "perf/eval_time")


def work_seconds(metrics: Mapping[str, float | None]) -> float:
    """Returns how long the work of a line of metrics took: the step, and an evaluation after it."""
    return sum(metrics.get(name) or 0.0 for name in _WORK)


class RunTime(BaseModel):
    """Seconds of a run by what they were used for; together, all seconds since the first launch.

    Events are methods; each takes the present time as `time.time` gives it, and accounts for the time since
    the last one. A clock that was set back adds nothing, and later events count from its new time.
    """

    model_config = ConfigDict(strict=True)

    began: Seconds
    """When the first launch began, in seconds since 1970. Later by the time in which the run was done, if it
    was given more steps then."""
    useful: Seconds = 0.0
    """Steps and evaluations whose result the run has."""
    between_launches: Seconds = 0.0
    """No launch ran: the run waited in a queue, or for somebody to resume it."""
    starting: Seconds = 0.0
    """From the beginning of each launch to its training."""
    recovering: Seconds = 0.0
    """From the last finished step before each failure that the launch survived until training went on."""
    repeated: Seconds = 0.0
    """Steps that were finished, but not in the checkpoint that the run went back to, and the unfinished step
    of each launch that ended."""
    between_steps: Seconds = 0.0
    """What neither a step nor an evaluation took: checkpoints, exported models, the first weights."""

    @property
    def total(self) -> float:
        """Seconds since the first launch, until the last event."""
        return self.useful + sum(self.lost().values())

    @property
    def goodput(self) -> float:
        """The useful share of all seconds; 0.0 before the first event."""
        return self.useful / self.total if self.total else 0.0

    def launch_again(self, ended: float, now: float, *, was_done: bool) -> None:
        """The run, whose last launch ended at `ended`, is launched again."""
        # `ended` has whole seconds, so that it may precede the last event
        self.end(max(min(ended, now), self._accounted), is_done=was_done)
        if was_done:
            self.began += max(now - self._accounted, 0.0)
        else:
            self.between_launches += self._since(now)

    def begin(self, now: float, kept: Iterable[Mapping[str, float | None]]) -> None:
        """Training begins, with the lines of metrics of the steps that the run still has."""
        self.starting += self._since(now)
        self._keep(kept)

    def go_back(self, now: float, kept: Iterable[Mapping[str, float | None]]) -> None:
        """Training goes on after a failure, with the lines of metrics that the run still has."""
        self.recovering += self._since(now)
        self._keep(kept)

    def step(self, now: float, metrics: Mapping[str, float | None]) -> None:
        """A step has ended, or an evaluation."""
        elapsed = self._since(now)
        work = min(work_seconds(metrics), elapsed)
        self.useful += work
        self.between_steps += elapsed - work

    def end(self, now: float, *, is_done: bool) -> None:
        """The launch ends; unless the run is done, the step that it was in is lost."""
        if is_done:
            self.between_steps += self._since(now)
        else:
            self.repeated += self._since(now)

    def _keep(self, kept: Iterable[Mapping[str, float | None]]) -> None:
        remaining = min(sum(map(work_seconds, kept)), self.useful)
        self.repeated += self.useful - remaining
        self.useful = remaining

    def lost(self) -> dict[str, float]:
        """Returns the seconds that were not useful by what took them, in words."""
        return {
            "between launches": self.between_launches,
            "starting": self.starting,
            "recovering from failures": self.recovering,
            "steps that were lost and done again": self.repeated,
            "between steps (checkpoints, models, first weights)": self.between_steps,
        }

    @property
    def _accounted(self) -> float:
        return self.began + self.total

    def _since(self, now: float) -> float:
        elapsed = now - self._accounted
        if elapsed < 0:
            self.began = max(self.began + elapsed, 0.0)
        return max(elapsed, 0.0)
