"""How often to save on machines that fail: the goodput of a job for each `checkpoint.interval`.

A failed node costs the steps since the newest complete checkpoint, and the time until training goes on. More
checkpoints cost the time that training waits for them.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, expm1

from rlrun.runner.planning.step_time import HOST_LINK, PlannedJob
from rlrun.runner.planning.sync_time import DISK

MAX_INTERVAL = 10_000


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """How often machines fail, and what a failure costs.

    Llama 3's 16,384 GPUs had 419 failures in 54 days (https://arxiv.org/abs/2407.21783), which is one in
    6,300 hours of a node of 8.
    """

    hours: float
    """Mean time between the failures of one node."""
    restart_seconds: float
    """From a failure until training goes on."""


@dataclass(frozen=True)
class SavingPlan:
    """What failures and checkpoints leave of a job's time. Failures come at a constant rate."""

    step_seconds: float
    waiting_seconds: float
    """How long training waits for a checkpoint."""
    writing_seconds: float
    """How long a checkpoint is written while training continues; until then a failure costs it."""
    restart_seconds: float
    node_seconds: float
    """Mean time between the failures of one node."""
    nodes: int
    """Nodes whose failure stops training."""
    steps: int = MAX_INTERVAL
    """Steps of the job: a checkpoint at its end is the rarest."""

    @property
    def failure_seconds(self) -> float:
        """Mean time between failures that stop training."""
        return self.node_seconds / self.nodes

    def goodput(self, interval: int) -> float:
        """Returns the share of the time that goes into steps which are not lost, with a checkpoint after each
        `interval` steps.

        It is the useful time of an attempt divided by its whole time, both on average. A failure at time t
        leaves as many checkpoints as are complete by then: the j-th is at j (interval · step + waiting) +
        writing. Without `writing` this is Daly's model (https://doi.org/10.1016/j.future.2004.11.016).
        """
        steps = interval * self.step_seconds
        between = (max(steps, self.writing_seconds) + self.waiting_seconds) / self.failure_seconds
        writing = self.writing_seconds / self.failure_seconds
        complete = exp(-writing) / expm1(between) if between < 700 else 0.0  # expm1 overflows beyond
        attempt = self.failure_seconds * exp(min(self.restart_seconds / self.failure_seconds, 700))
        return steps * complete / attempt

    @cached_property
    def best_interval(self) -> int:
        """The interval with the largest goodput, at most the job's steps."""
        longest = min(10 * self.failure_seconds / self.step_seconds, self.steps, MAX_INTERVAL)
        return max(range(1, ceil(longest) + 1), key=self.goodput)

    def chosen(self, interval: int | None) -> dict[str, float | None]:
        """Returns the goodput of an interval, None for a job without checkpoints, and the best interval's."""
        return {
            "goodput": None if interval is None else self.goodput(interval),
            "best_interval": self.best_interval,
            "best_goodput": self.goodput(self.best_interval),
        }


def plan_saving(job: PlannedJob, step_seconds: float, failures: NodeFailures) -> SavingPlan:
    """Returns what checkpoints cost a job, and what failures do. The failure of a node with trainer ranks
    stops training; that of a node which only has engines does not.
    """
    size = job.checkpoint_bytes
    waiting, writing = size / DISK, 0.0
    if job.spec.checkpoint.asynchronous:
        waiting, writing = size / len(job.plan.ranks) / HOST_LINK, waiting
    nodes = len({rank.location.node for rank in job.plan.ranks})
    return SavingPlan(
        step_seconds,
        waiting,
        writing,
        failures.restart_seconds,
        failures.hours * 3600,
        nodes,
        max(job.plan.steps or MAX_INTERVAL, 1),
    )
