"""The rules' view of a document that has broken values: these left out, and what hangs on them not reported.

One mistake should be one problem, and must not hide those that have nothing to do with it.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from rlrun.specs.algorithm_rules import ALGORITHM_RULES, Demands
from rlrun.specs.engine_rules import ENGINE_RULES
from rlrun.specs.job import Spec
from rlrun.specs.model_folder import model_findings
from rlrun.specs.optimizer_rules import OPTIMIZER_RULES
from rlrun.specs.parallel_rules import PARALLEL_RULES
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rollout_rules import ROLLOUT_RULES
from rlrun.specs.router_rules import ROUTER_RULES
from rlrun.specs.rules import RULES, ray_address
from rlrun.specs.strict import validated
from rlrun.specs.trainer_rules import TRAINER_RULES

_RULES = (
    *RULES,
    *ROLLOUT_RULES,
    *ENGINE_RULES,
    *ROUTER_RULES,
    *OPTIMIZER_RULES,
    *PARALLEL_RULES,
    *TRAINER_RULES,
)
"""Those that need no algorithm."""


def rule_findings(
    data: dict[str, Any], findings: list[Finding], demands: Demands | None, *, planning: bool = False
) -> list[Finding]:
    """What the rules say of the spec without its broken values, save what hangs on one of these.

    `planning`: leaves out the rule that only a launch has to follow.
    """
    broken = [_removable(finding.path) for finding in findings]
    spec = _repaired(data, broken)
    if spec is None:
        return []
    rules = (rule for rule in _RULES if not (planning and rule is ray_address))
    found = [each for rule in rules for each in rule(spec)]
    found += [each for rule in ALGORITHM_RULES for each in rule(spec, demands)] if demands else []
    found += model_findings(spec)
    return [finding for finding in found if not _hangs_on(finding, broken)]


def _hangs_on(finding: Finding, broken: Sequence[KeyPath]) -> bool:
    return any(path[: len(bad)] == bad for path in (finding.path, *finding.related) for bad in broken)


def _removable(path: KeyPath) -> KeyPath:
    """The key to leave out: of an array's broken element, the array."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _repaired(data: dict[str, Any], broken: Sequence[KeyPath]) -> Spec | None:
    """The spec with broken keys at their defaults, or a stand-in where they have none; None if that fails."""
    copy = deepcopy(data)
    for path in broken:
        _remove(copy, path)
    for _ in range(3):  # a stand-in table may itself lack a key
        try:
            return validated(copy)
        except ValidationError as error:
            missing = [each["loc"] for each in error.errors(include_url=False) if each["type"] == "missing"]
        for path in missing:
            table_at(copy, path[:-1])[path[-1]] = {} if len(path) == 1 else "unknown"
    return None


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    table = table_at(data, path[:-1])
    if path and isinstance(table, dict):
        table.pop(path[-1], None)


def table_at(data: Any, path: KeyPath) -> Any:
    """What stands at a path; None where it leads nowhere."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
