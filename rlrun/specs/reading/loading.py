"""From TOML files to a `Spec`, or to everything that is wrong with them, in one pass.

    files, profiles, --set, variables -> compose -> sections (pydantic) -> plugins, references, paths -> rules
    across sections -> Spec

Every check reports findings by key path; the composition knows where each key was written. A check whose keys
are broken already stays silent, so that one mistake is one problem.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlrun.specs.paths import PathError, PathMarker, path_fields, resolve_path
from rlrun.specs.problems.findings import Finding, Problem, SpecError
from rlrun.specs.problems.messages import Explainer
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.suggestions import KeyIndex, section_models
from rlrun.specs.reading.compose import compose
from rlrun.specs.reading.composition import Composition, origin_location
from rlrun.specs.reading.literal_secrets import literal_secrets, secret_warnings
from rlrun.specs.reading.overlay import Origin
from rlrun.specs.reading.repair import rule_findings, table_at
from rlrun.specs.reading.secret_references import unset_references, wrong_references
from rlrun.specs.reading.strict import validate_spec
from rlrun.specs.rules.algorithm_rules import Demands
from rlrun.specs.rules.term_rules import stale_ratio
from rlrun.specs.rules.trainer_rules import external_heads
from rlrun.specs.sections.job import Spec


@dataclass(slots=True)
class PluginReport:
    """What a look at the plugins a spec names has shown."""

    findings: list[Finding] = field(default_factory=list)
    paths: list[tuple[KeyPath, PathMarker]] = field(default_factory=list)
    """Parameters that are paths."""
    demands: Demands | None = None
    """What the algorithm asks for; None when it could not be made."""


OWN_KEYS = frozenset(KeyIndex(Spec).paths()) - {"engine.api_key", "engines.api_key"}
"""Dotted keys of the spec's own sections, less those that hold secrets."""

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
        """Which file and line set a key: `job.toml:12`, `--set trainer.lr:1`, or `default`.

        With the variable that gave the value, and where that was set: `job.toml:12, size from base.toml:3`.
        """
        path = _path(key)
        found = self._origin(path)
        if found is None:
            return "default"
        name = self.composition.used.get(path)
        variable = self._origin(("vars", name)) if name else None
        return (
            f"{origin_location(found)}, {name} from {origin_location(variable)}"
            if variable
            else origin_location(found)
        )

    def unset_references(self) -> list[Problem]:
        """References to environment variables that are not set here."""
        return [self.composition.place(finding) for finding in unset_references(self.composition.data)]

    def warnings(self) -> list[Problem]:
        """What looks like a secret in the files and in `--set`, a ratio that ignores stale samples, and
        external engines that may compute logits in another precision.
        """
        secrets = secret_warnings([*self.composition.files, *self.composition.overrides])
        findings = [*stale_ratio(self.spec), *external_heads(self.spec)]
        return [*secrets, *(self.composition.place(finding) for finding in findings)]

    def _origin(self, path: KeyPath) -> Origin | None:
        return self.composition.origins.get(path)


def load_spec(
    paths: Sequence[Path],
    overrides: Sequence[str] = (),
    plugin_check: PluginCheck | None = None,
    profiles: Sequence[str] = (),
    *,
    planning: bool = False,
) -> LoadedSpec:
    """Load, merge and check a spec; without `plugin_check`, plugins and their parameters are taken on trust.

    `profiles`: names of those to lay on top. `planning`: nothing will be launched, so that nodes need no
    cluster yet. Raises SpecError with every problem found.
    """
    composition = compose(paths, overrides, profiles)
    data = deepcopy(composition.data)
    findings, report = _document_findings(data, plugin_check)
    findings += _resolve_paths(composition, data, [*_own_paths(Spec, data), *report.paths])
    unread = {finding.path for finding in composition.findings}
    findings = [finding for finding in findings if finding.path not in unread]
    findings = [*composition.findings, *findings, *_variant_findings(composition, plugin_check)]
    if not composition.complete:
        findings = [finding for finding in findings if _was_written(finding, composition)]
    else:
        findings += rule_findings(data, findings, report.demands, planning=planning)
    problems = [*composition.problems, *(composition.place(finding) for finding in findings)]
    if problems:
        raise SpecError(_in_order(problems, composition))
    return LoadedSpec(validate_spec(data), composition)


def _document_findings(
    data: dict[str, Any], plugin_check: PluginCheck | None
) -> tuple[list[Finding], PluginReport]:
    """What is wrong with each table of a document by itself, and what its plugins say."""
    explainer = Explainer(data, KeyIndex(Spec))
    report = plugin_check(data, explainer) if plugin_check else PluginReport()
    findings = [
        *_section_findings(data, explainer),
        *report.findings,
        *_dates(data),
        *wrong_references(data, OWN_KEYS),
        *literal_secrets(data),
    ]
    return findings, report


def _variant_findings(composition: Composition, plugin_check: PluginCheck | None) -> Iterator[Finding]:
    """What is wrong with keys of profiles that nobody asked for this time."""
    for name, data in composition.variants.items():
        for finding in _document_findings(data, plugin_check)[0]:
            path = ("profiles", name, *finding.path)
            if path in composition.origins and not any(path == other.path for other in composition.findings):
                yield replace(finding, path=path)


def _section_findings(data: dict[str, Any], explainer: Explainer) -> list[Finding]:
    try:
        validate_spec(data)
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
        table = table_at(data, path[:-1])
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
