"""Loads TOML files into a `Spec`, and reports every mistake in one pass.

    files, profiles, --set, variables -> compose -> sections (pydantic) -> plugins, references, paths -> rules
    across sections -> dtype of this host -> Spec

Checks report findings by key path, and the composition knows where each key was written. A check is skipped
if one of its keys is already known to be wrong, so that one mistake is reported once.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlrun.specs.derived.default_dtype import DtypeChoices, choose_dtypes, dtype_lines, with_dtypes
from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.derived.recurrent_servers import recurrent_lines
from rlrun.specs.derived.shared_prefixes import SharingChoice
from rlrun.specs.needs import Needs
from rlrun.specs.paths import PathMarker
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecError, SpecText, coded
from rlrun.specs.problems.messages import Explainer
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.suggestions import KeyIndex
from rlrun.specs.processor import multiplies_bfloat16
from rlrun.specs.reading.benchmark_sets import fill_in_benchmarks
from rlrun.specs.reading.compose import compose
from rlrun.specs.reading.composition import (
    Composition,
    find_local_plugins,
    origin_location,
    own_paths,
    resolve_paths,
)
from rlrun.specs.reading.engine_types import (
    EngineChoices,
    fill_in_engines,
    warnings_about_engines,
)
from rlrun.specs.reading.literal_secrets import literal_secrets, secret_warnings
from rlrun.specs.reading.model_layers import fill_in_layers
from rlrun.specs.reading.overlay import Origin
from rlrun.specs.reading.repair import rule_findings
from rlrun.specs.reading.secret_references import unset_references, wrong_references
from rlrun.specs.reading.strict import validate_spec
from rlrun.specs.rules.exact_rules import untried_on_gpus
from rlrun.specs.rules.router_rules import unasked_interpreters
from rlrun.specs.rules.term_rules import stale_ratio
from rlrun.specs.rules.trainer_rules import external_heads, large_learning_rates, unsaved_optimizer
from rlrun.specs.sections.job import Spec

_INTEGER_LIMIT = 1 << 63
"""Integers of TOML have 64 bits with a sign."""


@dataclass(slots=True)
class PluginReport:
    """The result of checking the plugins that a spec names."""

    findings: list[Finding] = field(default_factory=list)
    paths: list[tuple[KeyPath, PathMarker]] = field(default_factory=list)
    """Plugin parameters that are paths."""
    needs: Needs | None = None
    """The needs of the algorithm; None if the algorithm could not be created."""
    unwritten: list[Finding] = field(default_factory=list)
    """The classes that remain to be written."""


OWN_KEYS = frozenset(KeyIndex(Spec).paths()) - {
    "engine.api_key",
    "engines.api_key",
    "eval.server.api_key",
}
"""Dotted keys of the spec's own sections, without those for secrets."""
PluginCheck = Callable[[Mapping[str, Any], Explainer], PluginReport]
"""Checks the plugins that the merged document names."""


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A valid spec, and the position of each of its keys."""

    spec: Spec
    """The spec as it is written, with the engines and the precision of this host. Its other derived keys are
    resolved once the model is known (rlrun.specs.derived.resolution)."""
    composition: Composition
    engine_choices: EngineChoices = field(default_factory=dict)
    """The engines that the spec does not name, and why each was chosen."""
    dtype_choices: DtypeChoices = field(default_factory=dict)
    """The precisions that the spec does not name, and why each was chosen."""
    layer_reason: str | None = None
    """The line that says why transformers computes the model's layers, where the spec does not."""
    unwritten: Sequence[Finding] = ()
    """The plugins that an importer left to be written: `rlrun launch` refuses them."""
    asked: Spec | None = None
    """The spec with the layout that it asks for, where a launch has chosen a smaller one (`min_fsdp`)."""
    layout_reason: str | None = None
    """The line that says why the layout is smaller."""

    def problem(self, key: str, message: str, cure: str | None = None) -> Problem:
        """Returns a problem that was found after loading, at the position of its key.

        Example: `problem("data.path", "has no rows")`.
        """
        return self.composition.locate(Finding(_path(key), message, cure))

    def engine_reasons(self) -> list[str]:
        """Returns a line for each choice: `[engine] uses native engines: the cluster has no GPUs`.

        Further lines say what SGLang servers are started with because of the model.
        """
        choices = [
            f"{_table_of(self.spec, path)} uses {choice.type} engines: {choice.reason}"
            for path, choice in self.engine_choices.items()
        ]
        return [*choices, *recurrent_lines(self.spec)]

    def dtype_reasons(self) -> list[str]:
        """Returns lines such as `trainer.dtype is float32: this processor has no instructions for …`."""
        return list(dtype_lines(self.spec, self.dtype_choices))

    def choices(self, sharing: SharingChoice | None) -> list[str]:
        """Returns what was chosen where the spec leaves it open, and why: the lines that `rlrun validate`,
        `rlrun plan` and the start of a job show.
        """
        if (server := self.spec.eval.server) is not None:
            return [f"{server.model} at {server.url} answers; samples have no token ids and no log-probs"]
        layers = [] if self.layer_reason is None else [self.layer_reason]
        shared = [] if sharing is None or not self.spec.debug.trains else [str(sharing)]
        layout = [] if self.layout_reason is None else [self.layout_reason]
        return [*layers, *layout, *self.engine_reasons(), *self.dtype_reasons(), *shared]

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

    def unset_references(self, given: Collection[str] = ()) -> list[Problem]:
        """Returns a problem for each reference to an environment variable that is not set here.

        `given`: names of variables that the job gets elsewhere.
        """
        environment = dict.fromkeys(given, "") | os.environ
        findings = coded(unset_references(self.composition.data, environment), Code.SECRET_REFERENCE)
        return [self.composition.locate(finding) for finding in findings]

    def warnings(self) -> list[Problem]:
        """Returns the warnings about a valid spec.

        They concern text that looks like a secret in the files and in `--set`, a ratio that ignores stale
        samples, external engines that may compute logits in another precision, large learning rates,
        checkpoints without an optimizer, `true_on_policy` and native engines on GPUs, and arguments of
        servers whose interpreter was not asked.
        """
        secrets = secret_warnings([*self.composition.files, *self.composition.overrides])
        findings = [
            *coded(stale_ratio(self.spec), Code.ALGORITHM),
            *coded(external_heads(self.spec), Code.TRAINER),
            *coded(large_learning_rates(self.spec), Code.TRAINER),
            *coded(unsaved_optimizer(self.spec), Code.TRAINER),
            *coded(untried_on_gpus(self.spec), Code.TRAINER),
            *coded(warnings_about_engines(self.engine_choices), Code.ENGINE),
            *coded(unasked_interpreters(self.spec), Code.ENGINE),
        ]
        return [*secrets, *(self.composition.locate(finding) for finding in findings)]

    def _origin(self, path: KeyPath) -> Origin | None:
        return self.composition.origins.get(path)


def load_spec(
    files: Sequence[Path | SpecText],
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
    composition = compose(files, overrides, profiles)
    data = deepcopy(composition.data)
    find_local_plugins(composition, data)
    fill_in_benchmarks(data)
    findings, report = _document_findings(data, plugin_check)
    rollout = report.needs is None or report.needs.rollout
    choices = fill_in_engines(data, rollout=rollout, other_host=other_host)
    findings += resolve_paths(composition, data, [*own_paths(Spec, data), *report.paths])
    layer_reason = fill_in_layers(data)
    reported = {finding.path for finding in composition.findings}
    findings = [finding for finding in findings if finding.path not in reported]
    findings = [*composition.findings, *findings, *_variant_findings(composition, plugin_check)]
    if not composition.complete:
        findings = [finding for finding in findings if _was_written(finding, composition)]
    else:
        findings += rule_findings(data, findings, report.needs, planning=planning)
    problems = [*composition.problems, *(composition.locate(finding) for finding in findings)]
    if problems:
        raise SpecError(_in_order(_without_secrets(problems), composition))
    spec = validate_spec(data)
    dtypes = choose_dtypes(spec, native_bfloat16=multiplies_bfloat16())
    unwritten = coded(report.unwritten, Code.PLUGIN)
    return LoadedSpec(with_dtypes(spec, dtypes), composition, choices, dtypes, layer_reason, tuple(unwritten))


def _document_findings(
    data: dict[str, Any], plugin_check: PluginCheck | None
) -> tuple[list[Finding], PluginReport]:
    """Returns the findings about each table of a document by itself, and the report of its plugins."""
    explainer = Explainer(data, KeyIndex(Spec))
    report = plugin_check(data, explainer) if plugin_check else PluginReport()
    findings = [
        *_section_findings(data, explainer),
        *coded(report.findings, Code.PLUGIN),
        *coded(dates(data), Code.TYPE),
        *coded(wrong_references(data, OWN_KEYS), Code.SECRET_REFERENCE),
        *literal_secrets(data),
    ]
    reported = {finding.path for finding in findings}
    large = coded(large_integers(data), Code.RANGE)
    findings += [finding for finding in large if finding.path not in reported]
    return findings, report


def _variant_findings(composition: Composition, plugin_check: PluginCheck | None) -> Iterator[Finding]:
    """Yields findings about the keys of profiles that were not chosen."""
    for name, variant in composition.variants.items():
        data = deepcopy(variant)
        find_local_plugins(composition, data, prefix=("profiles", name))
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


def _was_written(finding: Finding, composition: Composition) -> bool:
    """Returns whether the key was written; a key that seems to be missing may be in an unreadable part."""
    return finding.path in composition.origins


def _without_secrets(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yields the problems. All of a line end where its first literal secret begins, and so do their cures."""
    shown: dict[tuple[str, int], str] = {}
    for problem in problems:
        if problem.code is Code.LITERAL_SECRET:
            place = (problem.file, problem.line)
            shown[place] = min(problem.source_line, shown.get(place, problem.source_line), key=len)
    for problem in problems:
        line = shown.get((problem.file, problem.line), problem.source_line)
        with_value = problem.cure and line != problem.source_line and problem.cure.startswith("write --set")
        cure = f"{problem.cure.partition('=')[0]}=…" if problem.cure and with_value else problem.cure
        yield replace(problem, source_line=line, cure=cure)


def _in_order(problems: Iterable[Problem], composition: Composition) -> list[Problem]:
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


def dates(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yields dates and times, which no setting accepts; validation as JSON takes them for strings."""
    if isinstance(value, (date, time)):
        cure = f'write it in quotation marks: "{value}"'
        yield Finding(path, f"must not be a date or time, found {value}", cure, None, str(value))
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from dates(inner, (*path, key))


def large_integers(value: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yields a finding for each integer beyond 64 bits, which TOML readers and numpy may not represent."""
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        yield Finding(path, "must fit in 64 bits", f"use a number below 2^63 = {_INTEGER_LIMIT}", found=value)
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from large_integers(inner, (*path, key))
