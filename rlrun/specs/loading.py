"""From TOML files to a `Spec`, or to everything that is wrong with them, in one pass.

    files, --set -> compose -> sections (pydantic) -> plugins, references, paths -> rules across sections ->
    Spec

Every check reports findings by key path; the composition knows where each key was written. A check whose keys
are broken already stays silent, so that one mistake is one problem.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlrun.specs.algorithm_rules import ALGORITHM_RULES, Demands
from rlrun.specs.compose import Composition, Origin, compose, locate
from rlrun.specs.job import Spec
from rlrun.specs.messages import Explainer
from rlrun.specs.model_folder import model_findings
from rlrun.specs.paths import PathError, PathMarker, path_fields, resolve_path
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding, Problem, SpecError
from rlrun.specs.rules import RULES
from rlrun.specs.secrets import unset_references, wrong_references
from rlrun.specs.suggestions import KeyIndex, section_models


@dataclass(slots=True)
class PluginReport:
    """What a look at the plugins a spec names has shown."""

    findings: list[Finding] = field(default_factory=list)
    paths: list[tuple[KeyPath, PathMarker]] = field(default_factory=list)
    """Parameters that are paths."""
    demands: Demands | None = None
    """What the algorithm asks for; None when it could not be made."""


OWN_KEYS = frozenset(KeyIndex(Spec).paths())
"""Dotted keys of the spec's own sections."""

PluginCheck = Callable[[Mapping[str, Any], Explainer], PluginReport]
"""Given the merged document, looks at the plugins it names."""


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A valid spec, and where each of its keys was written."""

    spec: Spec
    composition: Composition

    def problem(self, key: str, message: str, cure: str | None = None) -> Problem:
        """A problem that shows later, at the place of its key: `problem("data.path", "has no rows")`."""
        return self.composition.place(Finding(_path(key), message, cure))

    def origin(self, key: str) -> str:
        """Which file and line set a key: `job.toml:12`, `--set trainer.lr:1`, or `default`."""
        found = self._origin(_path(key))
        return locate(found) if found else "default"

    def unset_references(self) -> list[Problem]:
        """References to environment variables that are not set here."""
        return [self.composition.place(finding) for finding in unset_references(self.composition.data)]

    def _origin(self, path: KeyPath) -> Origin | None:
        return self.composition.origins.get(path)


def load_spec(
    paths: Sequence[Path], overrides: Sequence[str] = (), plugin_check: PluginCheck | None = None
) -> LoadedSpec:
    """Load, merge and check a spec; without `plugin_check`, plugins and their parameters are taken on trust.

    Raises SpecError with every problem found.
    """
    composition = compose(paths, overrides)
    data = deepcopy(composition.data)
    explainer = Explainer(data, KeyIndex(Spec))
    report = plugin_check(data, explainer) if plugin_check else PluginReport()
    findings = [
        *_section_findings(data, explainer),
        *report.findings,
        *_dates(data),
        *wrong_references(data, OWN_KEYS),
    ]
    findings += _resolve_paths(composition, data, [*_own_paths(Spec, data), *report.paths])
    if not composition.complete:
        findings = [finding for finding in findings if _was_written(finding, composition)]
    else:
        findings += _rule_findings(data, findings, report.demands)
    problems = [*composition.problems, *(composition.place(finding) for finding in findings)]
    if problems:
        raise SpecError(_in_order(problems, composition))
    return LoadedSpec(_validate(Spec, data), composition)


def _validate(model: type[Spec], data: Mapping[str, Any]) -> Spec:
    """Strict about scalars ("8" is no number), while arrays and tables are what JSON calls them."""
    return model.model_validate_json(as_json(data), strict=True)


def as_json(data: Mapping[str, Any]) -> str:
    """A TOML document as JSON; dates and times become strings."""
    return json.dumps(data, default=str)


def _section_findings(data: dict[str, Any], explainer: Explainer) -> list[Finding]:
    try:
        _validate(Spec, data)
    except ValidationError as error:
        return explainer.findings(error, Spec)
    return []


def _dates(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """TOML's dates and times: no setting is one, and as JSON they would pass for strings."""
    if isinstance(value, (date, time)):
        cure = f'write it in quotation marks: "{value}"'
        yield Finding(path, f"must not be a date or time, found {value}", cure, None, str(value))
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(inner, (*path, key))


def _rule_findings(data: dict[str, Any], findings: list[Finding], demands: Demands | None) -> list[Finding]:
    """What the rules say of the spec without its broken values, save what hangs on one of these."""
    broken = [_removable(finding.path) for finding in findings]
    spec = _repaired(data, broken)
    if spec is None:
        return []
    found = [each for rule in RULES for each in rule(spec)]
    found += [each for rule in ALGORITHM_RULES for each in rule(spec, demands)] if demands else []
    found += model_findings(spec)
    return [finding for finding in found if not _hangs_on(finding, broken)]


def _hangs_on(finding: Finding, broken: Sequence[KeyPath]) -> bool:
    return any(path[: len(bad)] == bad for path in (finding.path, *finding.others) for bad in broken)


def _removable(path: KeyPath) -> KeyPath:
    """The key to leave out: of an array's broken element, the array."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _repaired(data: dict[str, Any], broken: Sequence[KeyPath]) -> Spec | None:
    """The spec with each broken key at its default, or, where it has none, with a stand-in; None where that
    fails."""
    copy = deepcopy(data)
    for path in broken:
        _remove(copy, path)
    for _ in range(2):  # a stand-in table may itself lack a key
        try:
            return _validate(Spec, copy)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                if each["type"] == "missing":
                    _table_at(copy, each["loc"][:-1])[each["loc"][-1]] = (
                        {} if len(each["loc"]) == 1 else "unknown"
                    )
    try:
        return _validate(Spec, copy)
    except ValidationError:
        return None


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    table = _table_at(data, path[:-1])
    if path and isinstance(table, dict):
        table.pop(path[-1], None)


def _table_at(data: Any, path: KeyPath) -> Any:
    """What stands at a path; None where it leads nowhere."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _own_paths(model: type[BaseModel], data: Any, prefix: KeyPath = ()) -> list[tuple[KeyPath, PathMarker]]:
    """The paths of the spec's own sections that the document gives."""
    found: list[tuple[KeyPath, PathMarker]] = []
    if not isinstance(data, dict):
        return found
    found += [((*prefix, name), marker) for name, marker in path_fields(model) if name in data]
    for name, each in model.model_fields.items():
        for inner in section_models(each.annotation):
            found += _own_paths(inner, data.get(name), (*prefix, name))
    return found


def _resolve_paths(
    composition: Composition, data: dict[str, Any], paths: Sequence[tuple[KeyPath, PathMarker]]
) -> list[Finding]:
    """Replace paths in `data` by absolute ones, each seen from the file that set it."""
    findings = []
    for path, marker in paths:
        table = _table_at(data, path[:-1])
        value = table[path[-1]]
        if not isinstance(value, str):
            continue
        origin = composition.origins.get(path)
        folder = origin.source.folder if origin else Path.cwd()
        try:
            table[path[-1]] = resolve_path(value, folder, marker)
        except PathError as error:
            cure = f"did you mean {error.suggestion}?" if error.suggestion else None
            findings.append(Finding(path, str(error), cure, error.suggestion, value))
    return findings


def _was_written(finding: Finding, composition: Composition) -> bool:
    """Whether the key is there, so that the finding is not about something that could not be read."""
    return finding.path in composition.origins


def _in_order(problems: Sequence[Problem], composition: Composition) -> list[Problem]:
    """By file, then by line; each once."""
    files = [source.name for source in composition.files]
    unique = list(dict.fromkeys(problems))
    return sorted(
        unique,
        key=lambda each: (files.index(each.file) if each.file in files else -1, each.line, each.column),
    )


def _path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))
