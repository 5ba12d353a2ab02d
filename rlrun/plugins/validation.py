"""Checks the plugins that a spec names: their names, and their parameters with the plugins' own models."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlrun.plugins.kinds import METHODS, how_to_install, names_in_packages
from rlrun.plugins.registry import PluginError, build, load, names
from rlrun.plugins.types import Needs
from rlrun.specs.engine_names import engine_fields, unknown_engine
from rlrun.specs.paths import path_fields
from rlrun.specs.problems.findings import Finding, SpecText
from rlrun.specs.problems.messages import Explainer
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.problems.suggestions import section_models, table_name
from rlrun.specs.reading.loading import LoadedSpec, PluginReport, load_spec
from rlrun.specs.reading.strict import as_json
from rlrun.specs.sections.data import DataSpec, EnvironmentSpec
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import AlgorithmSpec, HookSpec, Spec, TrackerSpec
from rlrun.specs.sections.rollout import AgentSpec, BufferSpec, RolloutFunctionSpec, ToolSpec
from rlrun.specs.sections.scoring import FilterSpec, RewardSpec
from rlrun.specs.sections.section import PluginSection
from rlrun.specs.sections.submit import SubmitSpec

_SECTIONS: tuple[tuple[KeyPath, str, type[PluginSection]], ...] = (
    (("algorithm",), "algorithms", AlgorithmSpec),
    (("data",), "data", DataSpec),
    (("rollout", "function"), "rollouts", RolloutFunctionSpec),
    (("rollout", "buffer"), "buffers", BufferSpec),
    (("rewards",), "rewards", RewardSpec),
    (("filters",), "filters", FilterSpec),
    (("eval", "datasets"), "data", EvalDatasetSpec),
    (("eval", "datasets", "rewards"), "rewards", RewardSpec),
    (("eval", "datasets", "function"), "rollouts", RolloutFunctionSpec),
    (("hooks",), "hooks", HookSpec),
    (("trackers",), "trackers", TrackerSpec),
    (("submit",), "launchers", SubmitSpec),
)
_INNER: dict[type[BaseModel], str] = {
    ToolSpec: "tools",
    AgentSpec: "agents",
    EnvironmentSpec: "environments",
}
"""The tables inside a plugin's parameters that name further plugins."""
_NOUNS = {"data": "data source"}


def load_checked_spec(
    files: Sequence[Path | SpecText],
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    *,
    planning: bool = False,
    other_host: bool = False,
) -> LoadedSpec:
    """Loads a spec and checks everything, including plugins and their parameters.

    `planning` and `other_host` are passed on to `load_spec`. Raises SpecError with every problem found.
    """
    return load_spec(files, overrides, check_plugins, profiles, planning=planning, other_host=other_host)


def needs_of(spec: Spec) -> Needs:
    """Returns what the spec's algorithm requires. Raises PluginError if the algorithm cannot be created."""
    return _needs(spec.algorithm.type, as_json(spec.algorithm.params))


def check_plugins(data: Mapping[str, Any], explainer: Explainer) -> PluginReport:
    """Returns findings about every plugin section of a merged document, whatever else is wrong with the
    document.
    """
    report = PluginReport()
    engines = [table.get("name") for _, table in _tables(data, ("engines",))]
    for where, kind, section in _SECTIONS:
        for path, table in _tables(data, where):
            name = table.get("type", section.model_fields["type"].default)
            if isinstance(name, str):
                _check(report, explainer, _PluginTable(path, kind, name, section, table), engines)
    report.findings += _scored_groups(data)
    report.findings += _served_rewards(data)
    report.findings += _environments_run_otherwise(data)
    return report


@dataclass(frozen=True, slots=True)
class _PluginTable:
    """A table of the document that names a plugin."""

    path: KeyPath
    kind: str
    name: str
    section: type[PluginSection]
    table: Mapping[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """What is left for the plugin."""
        return {key: value for key, value in self.table.items() if key not in self.section.model_fields}


def _tables(data: Any, where: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yields the table at `where`, or the tables of the arrays there. Without a table, the algorithm has
    defaults.
    """
    if where == ("algorithm",) and isinstance(data, dict) and "algorithm" not in data:
        data = {"algorithm": {}}
    tables: list[tuple[KeyPath, Any]] = [((), data)]
    for part in where:
        inner = [((*path, part), table.get(part)) for path, table in tables if isinstance(table, dict)]
        tables = []
        for path, value in inner:
            tables += (
                [((*path, number), table) for number, table in enumerate(value)]
                if isinstance(value, list)
                else [(path, value)]
            )
    yield from ((path, table) for path, table in tables if isinstance(table, dict))


def _check(report: PluginReport, explainer: Explainer, table: _PluginTable, engines: Sequence[Any]) -> None:
    """Checks a plugin's name and parameters. `engines`: the names of `[[engines]]`, as they are written."""
    try:
        plugin = load(table.kind, table.name)
    except PluginError as error:
        report.findings.append(_unusable((*table.path, "type"), table.kind, table.name, error))
        return
    params = plugin.Params
    if origin := getattr(plugin, "unwritten", None):
        message = f"{plugin.__name__} is not written yet: it replaces {origin}"
        cure = "write its methods, and delete its line `unwritten`"
        report.unwritten.append(Finding((*table.path, "type"), message, cure, found=table.name))
    explainer.keys.add(params, f"{table_name(table.path)}.")
    report.paths += [
        ((*table.path, key), marker) for key, marker in path_fields(params) if key in table.params
    ]
    for inner in _inner_tables(table, params):
        _check(report, explainer, inner, engines)
    if all(isinstance(name, str) for name in engines):  # otherwise the table that is meant may be that one
        for key in engine_fields(params):
            report.findings += unknown_engine((*table.path, key), table.params.get(key), engines)
    try:
        params.model_validate_json(as_json(table.params), strict=True)
        if table.kind == "algorithms":
            report.needs = _needs(table.name, as_json(table.params))
    except ValidationError as error:
        report.findings += explainer.findings(error, params, table.path, tuple(table.section.model_fields))
    except PluginError as error:
        report.findings.append(Finding((*table.path, "type"), str(error), found=table.name))


def _scored_groups(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields the rewards that compare the samples of a group, where only a part of it is scored first."""
    rollout = data.get("rollout")
    if not isinstance(rollout, dict) or rollout.get("probe_samples") is None:
        return
    for path, table in _tables(data, ("rewards",)):
        name = table.get("type")
        try:
            is_grouped = isinstance(name, str) and hasattr(load("rewards", name), "score_group")
        except PluginError:  # reported as such
            continue
        if is_grouped:
            message = f'"{name}" scores a whole group at once, and rollout.probe_samples scores a part first'
            cure = "remove rollout.probe_samples"
            related = (("rollout", "probe_samples"),)
            yield Finding((*path, "type"), message, cure, found=name, related=related)


def _served_rewards(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields the rewards that cannot score the texts of `[eval.server]`."""
    if not next(_tables(data, ("eval", "server")), None):
        return
    inherits = any("rewards" not in table for _, table in _tables(data, ("eval", "datasets")))
    for where in ((("rewards",),) if inherits else ()) + (("eval", "datasets", "rewards"),):
        for path, table in _tables(data, where):
            try:
                reward = load("rewards", table["type"]) if isinstance(table.get("type"), str) else None
            except PluginError:  # reported as such
                continue
            if getattr(reward, "reads_tokens", False):
                message = f'"{table["type"]}" reads the tokens of samples, and eval.server returns text'
                related = (("eval", "server"),)
                yield Finding((*path, "type"), message, "remove it", found=table["type"], related=related)
            for key in () if reward is None else engine_fields(reward.Params):
                if table.get(key) is not None:
                    message = "an evaluation of eval.server starts no [[engines]]"
                    cure = "give the address of a running server, as `url`"
                    yield Finding((*path, key), message, cure, related=(("eval", "server"),))


def _environments_run_otherwise(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields the environments whose methods are not those that the rollout calls."""
    [*functions] = _tables(data, ("rollout", "function"))
    (where, function) = functions[0] if functions else (("rollout", "function"), {})
    agent = function.get("agent")
    calls_run = isinstance(agent, dict) and agent.get("type") == "environment"
    if not calls_run and function.get("type") != "environment":
        return
    for path, table in _tables(data, ("data", "environment")):
        name = table.get("type")
        try:
            plugin = load("environments", name) if isinstance(name, str) else None
        except PluginError:  # reported as such
            continue
        if plugin is not None and not hasattr(plugin, "run" if calls_run else "step"):
            message = f'"{name}" asks the policy itself, and this rollout asks it for an environment'
            cure = 'set rollout.function = { type = "agent", agent = { type = "environment" } }'
            if calls_run:
                message = f'"{name}" does not ask the policy itself: it has `reset` and `step`, and no `run`'
                cure = 'set rollout.function = { type = "environment" }'
            yield Finding((*path, "type"), message, cure, found=name, related=((*where, "type"),))


def _inner_tables(outer: _PluginTable, params: type[BaseModel]) -> Iterator[_PluginTable]:
    """Yields the tables in a plugin's parameters that name plugins."""
    for key, field in params.model_fields.items():
        for section in section_models(field.annotation):
            if section in _INNER and issubclass(section, PluginSection):
                for path, table in _tables(outer.params, (key,)):
                    if isinstance(name := table.get("type"), str):
                        yield _PluginTable((*outer.path, *path), _INNER[section], name, section, table)


def _unusable(path: KeyPath, kind: str, name: str, error: PluginError) -> Finding:
    installed_names = names(kind)
    if name in installed_names or ".py:" in name:
        return Finding(path, str(error), found=name)
    noun = _noun(kind)
    if install := how_to_install(kind, name):
        return Finding(path, f'there is no {noun} "{name}"', install, found=name)
    suggestion = nearest(name, [*installed_names, *names_in_packages(kind)])
    listed = f"installed: {', '.join(installed_names) or 'none'}"
    if other_kinds := [_noun(other) for other in METHODS if other != kind and name in names(other)]:
        message = f'"{name}" is {" and ".join(map(_with_article, other_kinds))}, not {_with_article(noun)}'
        return Finding(path, message, listed, found=name)
    cure = f'did you mean "{suggestion}"? ({listed})' if suggestion else listed
    return Finding(path, f'there is no {noun} "{name}"', cure, suggestion, name)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _noun(kind: str) -> str:
    return _NOUNS.get(kind, kind.removesuffix("s"))


@cache
def _needs(name: str, params: str) -> Needs:
    needs = build("algorithms", name, json.loads(params)).needs
    assert isinstance(needs, Needs)
    return needs
