"""Loads TOML files into a `Spec`, and reports every mistake in one pass.

    files, profiles, --set, variables -> compose -> sections (pydantic) -> plugins, references, paths -> rules
    across sections -> Spec

Checks report findings by key path, and the composition knows where each key was written. A check is skipped
if one of its keys is already known to be wrong, so that one mistake is reported once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.paths import PathError, PathMarker, path_fields, resolve_path
from rlrun.specs.problems.findings import Finding, Problem, SpecError
from rlrun.specs.problems.messages import Explainer
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.suggestions import KeyIndex, section_models
from rlrun.specs.reading.compose import compose
from rlrun.specs.reading.composition import Composition, origin_location
from rlrun.specs.reading.engine_types import (
    EngineChoices,
    fill_in_engines,
    warnings_about_engines,
)
from rlrun.specs.reading.literal_secrets import literal_secrets, secret_warnings
from rlrun.specs.reading.overlay import Origin
from rlrun.specs.reading.repair import rule_findings, table_at
from rlrun.specs.reading.secret_references import unset_references, wrong_references
from rlrun.specs.reading.strict import validate_spec
from rlrun.specs.rules.algorithm_rules import Demands
from rlrun.specs.rules.term_rules import stale_ratio
from rlrun.specs.rules.trainer_rules import external_heads
from rlrun.specs.sections.job import Spec

_INTEGER_LIMIT = 1 << 63
"""Integers of TOML have 64 bits with a sign."""


@dataclass(slots=True)
class PluginReport:
    """The result of checking the plugins that a spec names."""

    findings: list[Finding] = field(default_factory=list)
    paths: list[tuple[KeyPath, PathMarker]] = field(default_factory=list)
    """Plugin parameters that are paths."""
    demands: Demands | None = None
    """The needs of the algorithm; None if the algorithm could not be created."""


OWN_KEYS = frozenset(KeyIndex(Spec).paths()) - {"engine.api_key", "engines.api_key"}
"""Dotted keys of the spec's own sections, without those for secrets."""

PluginCheck = Callable[[Mapping[str, Any], Explainer], PluginReport]
"""Checks the plugins that the merged document names."""


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A valid spec, and the position of each of its keys."""

    spec: Spec
    composition: Composition
    engine_choices: EngineChoices = field(default_factory=dict)
    """The engines that the spec does not name, and why each was chosen."""

    def problem(self, key: str, message: str, cure: str | None = None) -> Problem:
        """Returns a problem that was found after loading, at the position of its key.

        Example: `problem("data.path", "has no rows")`.
        """
        return self.composition.locate(Finding(_path(key), message, cure))

    def engine_reasons(self) -> list[str]:
        """Returns a line for each choice: `[engine] uses native engines: the cluster has no GPUs`."""
        return [
            f"{_table_of(self.spec, path)} uses {choice.type} engines: {choice.reason}"
            for path, choice in self.engine_choices.items()
        ]

    def origin(self, key: str) -> str:
        """Returns which file and line set a key: `job.toml:12`, `--set trainer.lr:1`, or `default`.

        If the value came from a variable, its name and origin follow: `job.toml:12, size from base.toml:3`.
        """
        path = _path(key)
        key_origin = self._origin(path)
        if key_origin is None:
            return "default"
        name = self.composition.used.get(path)
        variable = self._origin(("vars", name)) if name else None
        location = origin_location(key_origin)
        return f"{location}, {name} from {origin_location(variable)}" if variable else location

    def unset_references(self) -> list[Problem]:
        """Returns a problem for each reference to an environment variable that is not set in this process."""
        return [self.composition.locate(finding) for finding in unset_references(self.composition.data)]

    def warnings(self) -> list[Problem]:
        """Returns the warnings about a valid spec.

        They concern text that looks like a secret in the files and in `--set`, a ratio that ignores stale
        samples, external engines that may compute logits in another precision, and native engines on GPUs.
        """
        secrets = secret_warnings([*self.composition.files, *self.composition.overrides])
        findings = [
            *stale_ratio(self.spec),
            *external_heads(self.spec),
            *warnings_about_engines(self.engine_choices),
        ]
        return [*secrets, *(self.composition.locate(finding) for finding in findings)]

    def _origin(self, path: KeyPath) -> Origin | None:
        return self.composition.origins.get(path)


def load_spec(
    paths: Sequence[Path],
    overrides: Sequence[str] = (),
    plugin_check: PluginCheck | None = None,
    profiles: Sequence[str] = (),
    *,
    planning: bool = False,
    other_host: bool = False,
) -> LoadedSpec:
    """Loads, merges and checks a spec.

    `plugin_check`: checks plugins and their parameters; without it they are not checked. `profiles`: names of
    the profiles to merge. `planning`: skips the checks that only matter for a launch. `other_host`: chooses
    engines without regard to what is installed here. Raises SpecError with every problem found.
    """
    composition = compose(paths, overrides, profiles)
    data = deepcopy(composition.data)
    findings, report = _document_findings(data, plugin_check)
    rollout = report.demands is None or report.demands.rollout
    choices = fill_in_engines(data, rollout=rollout, other_host=other_host)
    findings += _resolve_paths(composition, data, [*_own_paths(Spec, data), *report.paths])
    reported = {finding.path for finding in composition.findings}
    findings = [finding for finding in findings if finding.path not in reported]
    findings = [*composition.findings, *findings, *_variant_findings(composition, plugin_check)]
    if not composition.complete:
        findings = [finding for finding in findings if _was_written(finding, composition)]
    else:
        findings += rule_findings(data, findings, report.demands, planning=planning)
    problems = [*composition.problems, *(composition.locate(finding) for finding in findings)]
    if problems:
        raise SpecError(_in_order(problems, composition))
    return LoadedSpec(validate_spec(data), composition, choices)


def _document_findings(
    data: dict[str, Any], plugin_check: PluginCheck | None
) -> tuple[list[Finding], PluginReport]:
    """Returns the findings about each table of a document by itself, and the report of its plugins."""
    explainer = Explainer(data, KeyIndex(Spec))
    report = plugin_check(data, explainer) if plugin_check else PluginReport()
    findings = [
        *_section_findings(data, explainer),
        *report.findings,
        *_dates(data),
        *wrong_references(data, OWN_KEYS),
        *literal_secrets(data),
    ]
    reported = {finding.path for finding in findings}
    findings += [finding for finding in _large_integers(data) if finding.path not in reported]
    return findings, report


def _variant_findings(composition: Composition, plugin_check: PluginCheck | None) -> Iterator[Finding]:
    """Yields findings about the keys of profiles that were not chosen."""
    for name, data in composition.variants.items():
        for finding in _document_findings(data, plugin_check)[0]:
            path = ("profiles", name, *finding.path)
            if path in composition.origins and not any(path == known.path for known in composition.findings):
                yield replace(finding, path=path)


def _section_findings(data: dict[str, Any], explainer: Explainer) -> list[Finding]:
    try:
        validate_spec(data)
    except ValidationError as error:
        return explainer.findings(error, Spec)
    return []


def _dates(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yields dates and times, which no setting accepts; validation as JSON takes them for strings."""
    if isinstance(value, (date, time)):
        cure = f'write it in quotation marks: "{value}"'
        yield Finding(path, f"must not be a date or time, found {value}", cure, None, str(value))
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(inner, (*path, key))


def _large_integers(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yields a finding for each integer beyond 64 bits, which TOML readers and numpy may not represent."""
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        yield Finding(path, "must fit in 64 bits", f"use a number below 2^63 = {_INTEGER_LIMIT}", found=value)
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _large_integers(inner, (*path, key))


def _own_paths(model: type[BaseModel], data: Any, prefix: KeyPath = ()) -> list[tuple[KeyPath, PathMarker]]:
    """Returns the keys of the document that the spec's own sections declare as paths."""
    paths: list[tuple[KeyPath, PathMarker]] = []
    if not isinstance(data, dict):
        return paths
    paths += [((*prefix, name), marker) for name, marker in path_fields(model) if name in data]
    for name, model_field in model.model_fields.items():
        for inner in section_models(model_field.annotation):
            paths += _own_paths(inner, data.get(name), (*prefix, name))
    return paths


def _resolve_paths(
    composition: Composition, data: dict[str, Any], paths: Sequence[tuple[KeyPath, PathMarker]]
) -> list[Finding]:
    """Replaces paths in `data` by absolute ones, each relative to the file that set it."""
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
    """Returns whether the key was written; a key that seems to be missing may be in an unreadable part."""
    return finding.path in composition.origins


def _in_order(problems: Sequence[Problem], composition: Composition) -> list[Problem]:
    """Returns the problems without duplicates, sorted by file, line and column."""
    files = [source.name for source in composition.files]
    unique = list(dict.fromkeys(problems))
    return sorted(
        unique,
        key=lambda problem: (
            files.index(problem.file) if problem.file in files else -1,
            problem.line,
            problem.column,
        ),
    )


def _table_of(spec: Spec, path: KeyPath) -> str:
    """Returns the header of a table of engines; those of `[[engines]]` are told apart by their names."""
    return "[engine]" if path == POLICY else f'[[engines]] "{spec.engines[int(path[1])].name}"'


def _path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))
