"""What one result of a check says: that the invariant holds, where it does not, or why nobody can tell."""

from dataclasses import dataclass


class NotChecked(Exception):
    """Raised by a check that cannot inspect something; the message says why."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where an invariant does not hold.

    Example: `Violation("the reward is 0.5, its parts add up to 1", step=3, samples=("17-0",))`
    """

    message: str
    """What was found and what was expected, with values."""
    step: int | None = None
    samples: tuple[str, ...] = ()
    """Ids of the samples."""
    file: str = ""
    """The file below the run's folder, with the line where there is one."""

    @property
    def place(self) -> str:
        """Where it is, for people: `step 3, sample 17-0, rollouts/step-3.jsonl.zst:1`."""
        step = [] if self.step is None else [f"step {self.step}"]
        word = "sample" if len(self.samples) == 1 else "samples"
        samples = [f"{word} {', '.join(self.samples)}"] if self.samples else []
        return ", ".join([*step, *samples, *filter(None, [self.file])])


Result = Violation | None
"""What a check yields for each thing that it inspected; None: the invariant holds."""
