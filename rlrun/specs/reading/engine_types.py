"""Fills in the kind of every engine that the spec leaves open, and records why it was chosen.

    document, packages of this host -> choose_engine -> `type` of [engine] and [[engines]], reasons

This is the only place that looks at the host: everything behind it reads `engine.type` as if it were written.
"""

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from rlrun.specs.derived.default_engine import Circumstances, EngineChoice, choose_engine
from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath

EngineChoices = Mapping[KeyPath, EngineChoice]
"""The choice for each section that does not set `type`."""


def fill_in_engines(data: dict[str, Any], *, rollout: bool = True, other_host: bool = False) -> EngineChoices:
    """Sets `type` in every table of engines that has none, and returns the choices.

    `rollout`: whether the algorithm uses the policy's engines; otherwise `[engine]` stays as it is.
    `other_host`: the spec is planned for hardware that was named, so SGLang is assumed to be there.
    """
    installed = None if other_host else is_installed("sglang")
    given = Circumstances(
        _cluster(data, "gpus_per_node", 0) > 0,
        data.get("deterministic") is True,
        sys.executable,
        installed,
    )
    choices = {}
    for path, table in _tables(data, rollout=rollout):
        if "type" not in table:
            choices[path] = _policys(data, table) or choose_engine(table, given)
            table["type"] = choices[path].type
    return choices


def _policys(data: Mapping[str, Any], table: Mapping[str, Any]) -> EngineChoice | None:
    """Returns the kind of the policy's engines for an adapter of its model, which they serve; else None."""
    engine = data.get("engine")
    kind = engine.get("type") if isinstance(engine, dict) else None
    if "adapter" not in table or "path" in table or not isinstance(kind, str):
        return None
    return EngineChoice(kind, "the policy's engines serve this adapter")  # type: ignore[arg-type]


def is_installed(package: str) -> bool:
    """Returns whether a package can be imported; a folder of its name, such as a clone, is not enough."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def warnings_about_engines(choices: EngineChoices) -> Iterator[Finding]:
    """Warns where the native engine was chosen for GPUs."""
    for path, choice in choices.items():
        if choice.cure is not None:
            message = f"the native engine is made for small models and is slow on GPUs ({choice.reason})"
            yield Finding((*path, "type"), message, choice.cure, at_value=False)


def _cluster(data: Mapping[str, Any], key: str, default: int) -> int:
    """Returns a number of `[cluster]`, or the default where it is missing or not a number."""
    cluster = data.get("cluster")
    value = cluster.get(key) if isinstance(cluster, dict) else None
    return value if isinstance(value, int) else default


def _tables(data: dict[str, Any], *, rollout: bool) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yields `[engine]`, which is added where it is missing, and the tables of `[[engines]]`.

    Values that are not tables are reported elsewhere.
    """
    tables: list[tuple[KeyPath, Any]] = [(POLICY, data.setdefault("engine", {}))] if rollout else []
    named = data.get("engines")
    tables += [
        (("engines", number), table) for number, table in enumerate(named if isinstance(named, list) else ())
    ]
    yield from ((path, table) for path, table in tables if isinstance(table, dict))
