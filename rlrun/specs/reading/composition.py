"""The merged document, and what it was merged from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.specs.problems.findings import Finding, Problem, Source, problem_at
from rlrun.specs.problems.positions import KeyPath, line_and_column
from rlrun.specs.reading.overlay import Origin


@dataclass(slots=True)
class Composition:
    """The merged document, before anyone has checked what it says."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[Source] = field(default_factory=list)
    """Every file read, in the order of merging; the last one is what the user named last."""
    overrides: list[Source] = field(default_factory=list)
    """Every `--set`."""
    complete: bool = True
    """False when a file or statement could not be read: a missing key may only be unreadable."""
    findings: list[Finding] = field(default_factory=list)
    """What is wrong with variables and profiles."""
    variables: dict[str, Any] = field(default_factory=dict)
    """`[vars]`."""
    used: dict[KeyPath, str] = field(default_factory=dict)
    """Where a variable was put in, and which."""
    referenced: set[str] = field(default_factory=set)
    """Variables that any source refers to, overridden keys included."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each profile that nobody asked for, the document with that profile on top."""

    def fail(self, problem: Problem) -> None:
        """Note a problem that keeps something from being read."""
        self.problems.append(problem)
        self.complete = False

    def place(self, finding: Finding) -> Problem:
        """A finding where its key was written, else another key that takes part, else the table around it."""
        path = next((path for path in (finding.path, *finding.related) if path in self.origins), finding.path)
        for depth in range(len(path), 0, -1):
            if origin := self.origins.get(path[:depth]):
                mark = origin.mark
                at_value = finding.at_value and depth == len(path)
                start, end = (
                    (mark.value_start, mark.value_end) if at_value else (mark.key_start, mark.key_end)
                )
                return problem_at(finding, origin.source, start, end)
        source = self.files[-1] if self.files else Source("--set", "", Path())
        return problem_at(finding, source, 0, 1)


def origin_location(origin: Origin) -> str:
    """`file:line` of an origin."""
    return f"{origin.source.name}:{line_and_column(origin.source.text, origin.mark.key_start)[0]}"
