"""Finds plugins through the entry points of installed distributions.

    entry points (names only) -> find -> load (imports and checks one class) -> build (makes one)

Names are known before anything is imported: listing is cheap, and a broken plugin hurts only who asks for it.
"""

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlrun.plugins.kinds import METHODS, fault_of
from rlrun.plugins.known_packages import how_to_install, names_in_packages
from rlrun.specs.problems.messages import describe_errors
from rlrun.specs.reading.secret_references import reveal

_OF_EXTRA = re.compile(r"""(?P<name>[\w.-]+).*;.*\bextra == ["'](?P<extra>[\w-]+)""")
"""A requirement of an extra, as a distribution's metadata has it."""
ALLOW_LOCAL = "RLRUN_ALLOW_LOCAL_PLUGINS"
"""Environment variable that `--allow-local-plugins` sets to 1, for the processes of the job too."""


class PluginError(ValueError):
    """A plugin that is missing, broken, ambiguous or given wrong parameters; says which, and what to do."""


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """A plugin as its distribution announces it; nothing of it is imported.

    Example: `PluginEntry("rewards", "math", "rlrun.plugins.rewards.math:Math", "rlrun", "0.1.0")`
    """

    kind: str
    name: str
    target: str
    """`module:class`"""
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind} plugin {self.name!r} of {self.distribution} {self.version}"


def entries(kind: str) -> list[PluginEntry]:
    """All announced plugins of a kind by name, duplicates included; imports none of them."""
    assert kind in METHODS, f"no such kind of plugin: {kind}"
    return sorted(_announced(tuple(sys.path))[kind], key=lambda entry: (entry.name, entry.distribution))


def entries_of(distribution: str) -> list[PluginEntry]:
    """All plugins that a distribution announces. PluginError when it announces none, or is not installed."""
    wanted = distribution.replace("_", "-").lower()
    found = [
        entry
        for kind in METHODS
        for entry in entries(kind)
        if entry.distribution.replace("_", "-").lower() == wanted
    ]
    if not found:
        owners = sorted({entry.distribution for kind in METHODS for entry in entries(kind)})
        raise PluginError(
            f"no installed package {distribution!r} announces plugins; those that do: {', '.join(owners)}. "
            "A package in a folder is installed by: pip install -e FOLDER"
        )
    return found


def names(kind: str) -> list[str]:
    """The names a spec may give as `type` in sections of this kind."""
    return sorted({entry.name for entry in entries(kind)})


def find(kind: str, name: str) -> PluginEntry:
    """The one entry of that name. PluginError when there is none, or when two distributions announce it.

    `path/to/file.py:Class` is a class in a file, where local plugins are allowed.
    """
    if ".py:" in name:
        return _local(kind, name)
    found = [entry for entry in entries(kind) if entry.name == name]
    if not found:
        raise PluginError(_unknown(kind, name))
    if len(found) > 1:
        owners = " and ".join(f"{entry.distribution} {entry.version} ({entry.target})" for entry in found)
        raise PluginError(f"{kind} plugin {name!r} is announced by {owners}; uninstall one of them")
    return found[0]


def load(kind: str, name: str) -> type[Any]:
    """Imports one plugin's class and checks it against its protocol. PluginError says what is wrong."""
    entry = find(kind, name)
    try:
        plugin = _import(entry)
    except (Exception, SystemExit) as error:  # the boundary to others' modules: an import may raise anything
        raise PluginError(f"{entry} ({entry.target}) fails to import: {_describe(error, entry)}") from error
    if fault := fault_of(kind, plugin):
        raise PluginError(f"{entry} ({entry.target}) {fault}")
    return plugin  # type: ignore[no-any-return]


def build(kind: str, name: str, params: Mapping[str, Any]) -> Any:
    """Makes a plugin from parameters as written in a spec, secrets by reference included.

    PluginError names the plugin and each wrong key.
    """
    plugin, checked = load(kind, name), checked_params(kind, name, params)
    try:
        return plugin(checked)
    except Exception as error:  # the boundary to other people's constructors
        entry = find(kind, name)
        raise PluginError(f"{entry} cannot start: {_describe(error, entry)}") from error


def checked_params(kind: str, name: str, params: Mapping[str, Any]) -> Any:
    """A plugin's `Params` from what a spec gives, with references to secrets replaced.

    PluginError names the plugin and each wrong key.
    """
    model = load(kind, name).Params
    try:
        return model.model_validate(reveal(params))
    except ValidationError as error:
        raise PluginError(f"{find(kind, name)}: {describe_errors(error, model, params)}") from error
    except ValueError as error:
        raise PluginError(f"{find(kind, name)}: {error}") from error


def _local(kind: str, name: str) -> PluginEntry:
    """A class in a file, as if a distribution of the file's name announced it."""
    path = Path(name.rpartition(":")[0])
    if os.environ.get(ALLOW_LOCAL) != "1":
        raise PluginError(
            f"{kind} plugin {name!r} is code outside any installed package; if you trust it, say "
            "--allow-local-plugins, or install it as a package (rlrun plugins new)"
        )
    if not path.is_file():
        raise PluginError(f"{kind} plugin {name!r}: there is no file {path}")
    return PluginEntry(kind, name, name, str(path), "(local)")


def _import(entry: PluginEntry) -> Any:
    """The class; whatever importing its module raises."""
    if ".py:" not in entry.name:
        return metadata.EntryPoint(name=entry.name, value=entry.target, group=f"rlrun.{entry.kind}").load()
    path, _, class_name = entry.name.rpartition(":")
    module_name = f"rlrun_local_{Path(path).stem}"
    if module_name not in sys.modules or sys.modules[module_name].__file__ != str(Path(path).resolve()):
        spec = util.spec_from_file_location(module_name, Path(path).resolve())
        assert spec is not None and spec.loader is not None, "the name ends in .py"
        module = util.module_from_spec(spec)
        sys.modules[module_name] = module  # pickling the class's parameters looks it up here
        spec.loader.exec_module(module)
    return getattr(sys.modules[module_name], class_name)


@cache
def _announced(path: tuple[str, ...]) -> dict[str, list[PluginEntry]]:
    """Entries by kind of every distribution on `path`: `sys.path`, a parameter so that a change is seen."""
    announced: dict[str, list[PluginEntry]] = {kind: [] for kind in METHODS}
    for entry in _scan():
        announced[entry.kind].append(entry)
    return announced


def _scan() -> Iterator[PluginEntry]:
    """Parses the entry points of those distributions that have some for us: one in hundreds, as a rule."""
    seen = set()
    for distribution in metadata.distributions():
        if "[rlrun." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        # each look-up parses all of the metadata; what an interrupted uninstall leaves has none
        name, version = distribution.name or "", distribution.version
        if not name or name in seen:  # further down the path: shadowed
            continue
        seen.add(name)
        for point in distribution.entry_points:
            kind = point.group.removeprefix("rlrun.")
            if point.group != kind and kind in METHODS:
                yield PluginEntry(kind, point.name, point.value, name, version)


def _unknown(kind: str, name: str) -> str:
    if cure := how_to_install(kind, name):
        return f"no {kind} plugin is named {name!r}: {cure}"
    installed = names(kind)
    nearest = difflib.get_close_matches(name, [*installed, *names_in_packages(kind)], n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    listed = ", ".join(installed) or "none"
    return f"no {kind} plugin is named {name!r}; {guess}installed: {listed}"


def _describe(error: BaseException, entry: PluginEntry) -> str:
    """What was raised, and the extra of the plugin's distribution that has what is not installed."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, ModuleNotFoundError) or ".py:" in entry.name:
        return text
    package = (error.name or "").partition(".")[0].replace("_", "-").lower()
    for requirement in metadata.requires(entry.distribution) or ():
        found = _OF_EXTRA.match(requirement)
        if found and found["name"].replace("_", "-").lower() == package:
            return f"{text}; pip install '{entry.distribution}[{found['extra']}]'"
    return text
