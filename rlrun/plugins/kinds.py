"""The kinds of plugins, and the check that a class is a plugin of a kind (rlrun.plugins.protocols).

Some plugins of rlrun's repository are in separate packages, under `packages/`. If a spec names one whose
package is not installed, the error says how to install it.
"""

from collections.abc import Mapping
from inspect import isclass, signature

from pydantic import BaseModel

from rlrun.plugins.protocols import API_VERSION, OLDEST_API_VERSION

METHODS: Mapping[str, Mapping[str, int]] = {
    "algorithms": {"advantages": 1, "loss": 1},
    "data": {"__len__": 0, "__getitem__": 1},
    "rewards": {"score|score_group": 1},
    "filters": {"__call__": 1},
    "rollouts": {"run|run_group": 1},
    "buffers": {"order": 2},
    "tools": {"call": 1},
    "agents": {"run": 1},
    "environments": {"tasks": 0, "reset|run": 1, "step|run": 1},
    "hooks": {"on_removed|on_samples|on_model|on_batch|before_update": 1},
    "trackers": {"start": 3, "log": 2, "close": 0},
    "launchers": {"files": 1, "submit": 1, "state": 2, "cancel": 2, "output": 1},
}
"""The methods of each kind with their number of arguments; the keys are the kinds.

`a|b` means that one of them is required.
"""
_DECORATORS = {
    kind: f"; if it is a function, decorate it with @rlrun.{name}"
    for kind, name in (("rewards", "reward"), ("filters", "filter"), ("data", "data"))
}
PACKAGES: Mapping[tuple[str, str], str] = {
    ("rewards", "ifbench"): "rlrun-ifbench",
    **{
        ("algorithms", name): "rlrun-algorithms"
        for name in (
            *("vespo", "luspo", "gpg", "topr", "gigpo", "hierarchical_grpo", "a_star_po"),
            "optimal_token_baseline",
        )
    },
}
"""The package that declares a plugin, by kind and name."""


def fault_of(kind: str, plugin: object) -> str | None:
    """Returns what is wrong with a plugin of this kind, phrased to follow its name; None if nothing is."""
    if not isclass(plugin):
        return f"is not a class{_DECORATORS.get(kind, '')}"
    version = getattr(plugin, "api_version", None)
    if version is None:
        return f"does not say which api_version it is for; this rlrun has {API_VERSION}"
    if not (isinstance(version, int) and OLDEST_API_VERSION <= version <= API_VERSION):
        behind = "rlrun" if isinstance(version, int) and version > API_VERSION else "the plugin"
        return f"has api_version {version}, this rlrun has {API_VERSION}; upgrade {behind}"
    params = getattr(plugin, "Params", None)
    if not (isclass(params) and issubclass(params, BaseModel)):
        return "has no pydantic model named Params"
    if params.model_config.get("extra") != "forbid":
        return "would ignore misspelt parameters; give its Params extra='forbid'"
    for required, arguments in {"__init__": 1, **METHODS[kind]}.items():
        names = required.split("|")
        if not any(_takes(getattr(plugin, name, None), arguments) for name in names):
            return f"needs a method {' or '.join(names)} that takes {arguments} arguments beside self"
    return None


def _takes(method: object, arguments: int) -> bool:
    """Returns whether a method, looked up on its class, accepts that many arguments besides self."""
    if not callable(method):
        return False
    try:
        signature(method).bind(*range(arguments + 1))
    except TypeError:
        return False
    return True


def names_in_packages(kind: str) -> list[str]:
    """Returns the names of a kind that these packages declare, whether they are installed or not."""
    return [name for package_kind, name in PACKAGES if package_kind == kind]


def how_to_install(kind: str, name: str) -> str | None:
    """Returns which package has a plugin and how to install it; None for a plugin of no known package."""
    package = PACKAGES.get((kind, name))
    if package is None:
        return None
    return (
        f"it is in the package {package}, which is not installed; "
        f"in a clone of rlrun's repository: pip install ./packages/{package}"
    )
