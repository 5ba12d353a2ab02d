"""Finds plugins through the entry points of installed distributions.

    entry points (names only) -> find -> load (imports and checks one class) -> build (creates one plugin)

Names are known before anything is imported, so listing is cheap, and a broken plugin only affects specs that
name it.
"""

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlrun.plugins.data_copies import with_copies
from rlrun.plugins.functions import plugin_of
from rlrun.plugins.kinds import METHODS, fault_of, how_to_install, names_in_packages
from rlrun.specs.local_code import how_to_allow, is_file_allowed
from rlrun.specs.paths import suggest_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.messages import describe_errors
from rlrun.specs.reading.secret_references import reveal

_OF_EXTRA = re.compile(r"""(?P<name>[\w.-]+).*;.*\bextra == ["'](?P<extra>[\w-]+)""")
"""Matches a requirement of an extra in a distribution's metadata."""


_others: set["PluginEntry"] = set()
"""The plugins of other distributions and of local files that were imported."""


class PluginError(ValueError):
    """A plugin is missing, broken, ambiguous or has wrong parameters; the message says what to do."""

    code = Code.PLUGIN


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """A plugin as its distribution announces it, before anything of it is imported.

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
    """Returns all announced plugins of a kind by name, including duplicates, without importing them."""
    assert kind in METHODS, f"no such kind of plugin: {kind}"
    return sorted(_announced(tuple(sys.path))[kind], key=lambda entry: (entry.name, entry.distribution))


def entries_of(distribution: str) -> list[PluginEntry]:
    """Returns all plugins that a distribution announces. Raises PluginError if it announces none or is not
    installed.
    """
    normalised_name = distribution.replace("_", "-").lower()
    found = [
        entry
        for kind in METHODS
        for entry in entries(kind)
        if entry.distribution.replace("_", "-").lower() == normalised_name
    ]
    if not found:
        owners = sorted({entry.distribution for kind in METHODS for entry in entries(kind)})
        raise PluginError(
            f"no installed package {distribution!r} announces plugins; those that do: {', '.join(owners)}. "
            "A package in a folder is installed by: pip install -e FOLDER"
        )
    return found


def names(kind: str) -> list[str]:
    """Returns the names that a spec may give as `type` in sections of this kind."""
    return sorted({entry.name for entry in entries(kind)})


def find(kind: str, name: str) -> PluginEntry:
    """Returns the entry of that name. Raises PluginError if there is none, or if two distributions announce
    it.

    `path/to/file.py:Class` names a class or a decorated function in a file, if local plugins are allowed.
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
    """Imports a plugin's class and checks it against its protocol. Raises PluginError, which says what is
    wrong.
    """
    entry = find(kind, name)
    try:
        plugin = _import(entry)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # importing a foreign module may raise anything
        raise PluginError(f"{entry} ({entry.target}) fails to import: {_describe(error, entry)}") from error
    if entry.distribution != "rlrun":
        _others.add(entry)
    if fault := fault_of(kind, plugin):
        raise PluginError(f"{entry} ({entry.target}) {fault}")
    return plugin  # type: ignore[no-any-return]


def has_loaded_others() -> bool:
    """Returns whether this process may run code of plugins that do not belong to rlrun.

    Rewards do not count: they run in processes of their own.
    """
    return any(entry.kind != "rewards" for entry in _others)


def build(kind: str, name: str, params: Mapping[str, Any]) -> Any:
    """Creates a plugin from parameters as written in a spec, where secrets are references.

    Raises PluginError, which names the plugin and each wrong key.
    """
    plugin, checked = load(kind, name), checked_params(kind, name, params)
    try:
        return plugin(checked)
    except Exception as error:  # a foreign constructor may raise anything
        entry = find(kind, name)
        raise PluginError(f"{entry} cannot start: {_describe(error, entry)}") from error


def checked_params(kind: str, name: str, params: Mapping[str, Any]) -> Any:
    """Returns a plugin's `Params` from the keys of a spec, with references to secrets replaced, and addresses
    of objects by the paths of their copies.

    Raises PluginError, which names the plugin and each wrong key.
    """
    model = load(kind, name).Params
    try:
        return with_copies(model.model_validate(reveal(params)))
    except ValidationError as error:
        raise PluginError(f"{find(kind, name)}: {describe_errors(error, model, params)}") from error
    except ValueError as error:
        raise PluginError(f"{find(kind, name)}: {error}") from error


def _local(kind: str, name: str) -> PluginEntry:
    """Returns the entry of a class in a file, as if a distribution with the file's name announced it."""
    path = Path(name.rpartition(":")[0])
    if not is_file_allowed(path):
        raise PluginError(
            f"{kind} plugin {name!r} is code outside any installed package; {how_to_allow(path)}"
        )
    if not path.is_file():
        meant = suggest_path(path.name, path)
        guess = f"; did you mean {meant}?" if meant else ""
        raise PluginError(f"{kind} plugin {name!r}: there is no file {path}{guess}")
    return PluginEntry(kind, name, name, str(path), "(local)")


def _import(entry: PluginEntry) -> Any:
    """Returns the class; raises whatever importing its module raises."""
    if ".py:" not in entry.name:
        point = metadata.EntryPoint(name=entry.name, value=entry.target, group=f"rlrun.{entry.kind}")
        return plugin_of(point.load())
    path, _, member = entry.name.rpartition(":")
    module_name = f"rlrun_local_{Path(path).stem}"
    if module_name not in sys.modules or sys.modules[module_name].__file__ != str(Path(path).resolve()):
        spec = util.spec_from_file_location(module_name, Path(path).resolve())
        assert spec is not None and spec.loader is not None, "the name ends in .py"
        module = util.module_from_spec(spec)
        sys.modules[module_name] = module  # pickling the class's parameters looks it up here
        spec.loader.exec_module(module)
    module = sys.modules[module_name]
    if not hasattr(module, member):
        values = vars(module).items()
        defined = [name for name, value in values if getattr(value, "__module__", None) == module_name]
        guess = difflib.get_close_matches(member, defined, n=1)
        cure = f"did you mean {guess[0]!r}? " if guess else ""
        raise PluginError(f"{path} has no {member!r}; {cure}it defines: {', '.join(defined) or 'nothing'}")
    return plugin_of(getattr(module, member))


@cache
def _announced(path: tuple[str, ...]) -> dict[str, list[PluginEntry]]:
    """Returns the entries of every distribution on `path`, by kind.

    `path` is `sys.path`; as the key of the cache, it makes a change of `sys.path` take effect.
    """
    announced: dict[str, list[PluginEntry]] = {kind: [] for kind in METHODS}
    for entry in _scan():
        announced[entry.kind].append(entry)
    return announced


def _scan() -> Iterator[PluginEntry]:
    """Parses the entry points of the distributions that announce plugins, usually one in hundreds."""
    seen = set()
    for distribution in metadata.distributions():
        if "[rlrun." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        try:  # each look-up parses all metadata, so only once
            name, version = distribution.name or "", distribution.version
        except FileNotFoundError:  # what importlib_metadata, if imported, says of the remains of an uninstall
            continue
        if not name or name in seen:  # the same remains; or shadowed by a distribution earlier on the path
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
    """Returns the exception's text, and which extra of the distribution to install if a module is missing."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, ModuleNotFoundError) or ".py:" in entry.name:
        return text
    package = (error.name or "").partition(".")[0].replace("_", "-").lower()
    for requirement in metadata.requires(entry.distribution) or ():
        found = _OF_EXTRA.match(requirement)
        if found and found["name"].replace("_", "-").lower() == package:
            return f"{text}; pip install '{entry.distribution}[{found['extra']}]'"
    return text
