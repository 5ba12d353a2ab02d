"""The merged document of a spec, with the position of every key in its sources.

Its paths are made absolute, each relative to the file that sets it. Paths are the values that sections and
plugins declare as such, and the files of plugins beside the spec: `type = "my_rewards.py:brief"`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlrun.specs.local_code import allow_if_trusted
from rlrun.specs.paths import PathError, PathMarker, absolute_path, path_fields, resolve_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecText, problem_at
from rlrun.specs.problems.positions import KeyPath, line_and_column
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.reading.overlay import Origin
from rlrun.specs.reading.repair import table_at


@dataclass(slots=True)
class Composition:
    """The merged document before its values are checked."""

    data: dict[str, Any] = field(default_factory=dict)
    """The document."""
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    """Where each key was set."""
    problems: list[Problem] = field(default_factory=list)
    """Files, statements and arguments that could not be read."""
    files: list[SpecText] = field(default_factory=list)
    """All files, in the order of merging. The last one is the file that the user named last."""
    overrides: list[SpecText] = field(default_factory=list)
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
        source = self.files[-1] if self.files else SpecText("--set", "", Path())
        return problem_at(finding, source, 0, 1)


def origin_location(origin: Origin) -> str:
    """Returns `file:line` of an origin."""
    return f"{origin.source.name}:{line_and_column(origin.source.text, origin.mark.key_start)[0]}"


def own_paths(model: type[BaseModel], data: Any, prefix: KeyPath = ()) -> list[tuple[KeyPath, PathMarker]]:
    """Returns the keys of the document that the spec's own sections declare as paths."""
    paths: list[tuple[KeyPath, PathMarker]] = []
    if isinstance(data, list):  # [[engines]]
        return [
            path
            for number, element in enumerate(data)
            for path in own_paths(model, element, (*prefix, number))
        ]
    if not isinstance(data, dict):
        return paths
    paths += [((*prefix, name), marker) for name, marker in path_fields(model) if name in data]
    for name, model_field in model.model_fields.items():
        for inner in section_models(model_field.annotation):
            paths += own_paths(inner, data.get(name), (*prefix, name))
    return paths


def resolve_paths(
    composition: Composition, data: dict[str, Any], paths: Sequence[tuple[KeyPath, PathMarker]]
) -> list[Finding]:
    """Replaces paths in `data` by absolute ones, each relative to the file that set it."""
    findings = []
    for path, marker in paths:
        table = table_at(data, path[:-1])
        value = table[path[-1]]
        if not isinstance(value, str):
            continue
        try:
            table[path[-1]] = resolve_path(value, _folder(composition, path), marker)
        except PathError as error:
            cure = f"did you mean {error.suggestion}?" if error.suggestion else None
            finding = Finding(path, str(error), cure, error.suggestion, value, code=Code.PATH)
            findings.append(finding)
    return findings


def find_local_plugins(composition: Composition, data: Any, path: KeyPath = (), prefix: KeyPath = ()) -> None:
    """Replaces the files in `type` by absolute paths, each relative to the file of the spec that sets it.

    A file is allowed to run if the user trusts the folder of both. `prefix`: where the sources have the keys
    of a profile.
    """
    if not isinstance(data, (dict, list)):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        inner = (*path, key)
        if key == "type" and isinstance(value, str) and ".py:" in value:
            written, _, name = value.rpartition(":")
            of_profile = (*prefix, *inner)
            folder = _folder(composition, of_profile if of_profile in composition.origins else inner)
            file = absolute_path(written, folder)
            allow_if_trusted(file, folder)
            data[key] = f"{file}:{name}"
        else:
            find_local_plugins(composition, value, inner, prefix)


def _folder(composition: Composition, path: KeyPath) -> Path:
    """Returns the folder of the file that sets a key."""
    origin = composition.origins.get(path)
    return origin.source.folder if origin else Path.cwd()
