"""The merged document of a spec, with the position of every key in its sources."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.specs.problems.findings import Finding, Problem, Source, problem_at
from rlrun.specs.problems.positions import KeyPath, line_and_column
from rlrun.specs.reading.overlay import Origin


@dataclass(slots=True)
class Composition:
    """The merged document before its values are checked."""

    data: dict[str, Any] = field(default_factory=dict)
    """The document."""
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    """Where each key was set."""
    problems: list[Problem] = field(default_factory=list)
    """Files, statements and arguments that could not be read."""
    files: list[Source] = field(default_factory=list)
    """All files, in the order of merging. The last one is the file that the user named last."""
    overrides: list[Source] = field(default_factory=list)
    """All `--set` arguments."""
    complete: bool = True
    """False if a file or statement could not be read. A key that seems to be missing may then be in it."""
    findings: list[Finding] = field(default_factory=list)
    """Mistakes in variables and profiles."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The table `[vars]`."""
    used: dict[KeyPath, str] = field(default_factory=dict)
    """Keys whose value contained a variable, with the name of the variable."""
    referenced: set[str] = field(default_factory=set)
    """Names of variables that any source refers to, including keys that a later source overrides."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each profile that was not chosen, the document merged with it. They are checked as well."""

    def add_unreadable(self, problem: Problem) -> None:
        """Adds a problem because of which a part of the document could not be read."""
        self.problems.append(problem)
        self.complete = False

    def locate(self, finding: Finding) -> Problem:
        """Returns the finding as a problem at the position of its key.

        Where the key was not written, that is the position of a related key, or of the table around it.
        """
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
    """Returns `file:line` of an origin."""
    return f"{origin.source.name}:{line_and_column(origin.source.text, origin.mark.key_start)[0]}"
