"""One invariant of a run, and what auditing it gave.

    check(run, batch) ──▶ None, Violation, None … ──▶ Outcome: passed, violated, or not checked and why

A check yields one result for each thing that it inspected: None where the invariant holds. A check that
inspected nothing has not passed; its outcome says why nothing could be inspected.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rlrun.runner.audit.audited_run import AuditedRun, Batch
from rlrun.runner.audit.violation import NotChecked, Result, Violation

KEPT_VIOLATIONS = 100
"""Violations of one check that are kept; further ones are counted."""


BatchCheck = Callable[[AuditedRun, Batch], Iterator[Result]]
RunCheck = Callable[[AuditedRun], Iterator[Result]]


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant."""

    name: str
    """Its heading in docs/auditing.md."""
    severity: Literal["error", "warning"]
    """`error`: the run is not what it says it is. `warning`: a person should look at it."""
    inspects: str
    """What one result is about, in the plural: `samples`."""
    cure: str
    """What to do about a violation."""
    of_batch: BatchCheck | None = None
    """Inspects one file of samples."""
    of_run: RunCheck | None = None
    """Inspects everything else; called after all files of samples."""


@dataclass(slots=True)
class Outcome:
    """What one check found in a run."""

    check: Check
    inspected: int = 0
    num_violations: int = 0
    violations: list[Violation] = field(default_factory=list)
    """The first `KEPT_VIOLATIONS`."""
    reasons: dict[str, None] = field(default_factory=dict)
    """Why parts of the run were not inspected, each reason once, in order."""

    @property
    def status(self) -> Literal["passed", "violated", "not checked"]:
        """Whether the invariant holds; `not checked` if nothing was inspected."""
        if self.num_violations:
            return "violated"
        return "passed" if self.inspected else "not checked"

    @property
    def why_not(self) -> str:
        """Why the run, or parts of it, were not inspected; "" if nothing is known to be left out."""
        if self.reasons:
            return "; ".join(self.reasons)
        return "" if self.inspected else f"the run stores no {self.check.inspects}"

    def take(self, results: Iterable[Result]) -> None:
        """Counts the results of the check."""
        try:
            for result in results:
                self.inspected += 1
                if result is not None:
                    self.num_violations += 1
                    if len(self.violations) < KEPT_VIOLATIONS:
                        self.violations.append(result)
        except NotChecked as reason:
            self.reasons[str(reason)] = None

    def as_json(self) -> dict[str, Any]:
        """Returns the outcome as JSON values."""
        return {
            "check": self.check.name,
            "severity": self.check.severity,
            "status": self.status,
            "inspected": self.inspected,
            "inspects": self.check.inspects,
            "violations": self.num_violations,
            "evidence": [
                {"step": each.step, "samples": each.samples, "file": each.file, "message": each.message}
                for each in self.violations
            ],
            "not_checked": self.why_not,
            "cure": self.check.cure if self.num_violations else "",
        }
