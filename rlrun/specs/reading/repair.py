"""Applies the rules to a document that has broken values.

Broken values are replaced by defaults, and findings that depend on them are dropped: one mistake is reported
once, and does not hide unrelated ones.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.needs import Needs
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, coded
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.reading.strict import validate_spec
from rlrun.specs.reading.sweep_rules import SWEEP_RULES
from rlrun.specs.rules.algorithm_rules import ALGORITHM_RULES
from rlrun.specs.rules.engine_rules import ENGINE_RULES
from rlrun.specs.rules.exact_rules import EXACT_RULES
from rlrun.specs.rules.lora_rules import LORA_RULES
from rlrun.specs.rules.model_folder import model_findings
from rlrun.specs.rules.rollout_rules import ROLLOUT_RULES
from rlrun.specs.rules.router_rules import ROUTER_RULES
from rlrun.specs.rules.served_model_rules import SERVED_MODEL_RULES
from rlrun.specs.rules.shared_rules import RULES, ray_address
from rlrun.specs.rules.trainer_rules import PARALLEL_RULES, TRAINER_RULES
from rlrun.specs.sections.job import Spec

_RULES = (
    (Code.CONFLICT, (*RULES, *SERVED_MODEL_RULES)),
    (Code.ROLLOUT, ROLLOUT_RULES),
    (Code.ENGINE, (*ENGINE_RULES, *ROUTER_RULES)),
    (Code.LAYOUT, PARALLEL_RULES),
    (Code.TRAINER, (*EXACT_RULES, *TRAINER_RULES)),
    (Code.ADAPTER, LORA_RULES),
    (Code.SWEEP, SWEEP_RULES),
)
"""The rules that do not depend on the algorithm, with the code of what they find."""


def rule_findings(
    data: dict[str, Any], findings: list[Finding], needs: Needs | None, *, planning: bool = False
) -> list[Finding]:
    """Returns the findings of the table and of all rules, except those that depend on a broken value.

    `planning`: skips the rule that only matters for a launch.
    """
    broken = [_removable(finding.path) for finding in findings]
    spec = _repaired(data, broken)
    if spec is None:
        return []
    of_rules = list(_applied(spec, needs, planning=planning))
    for group in policy_groups(spec) if spec.engine.groups else ():
        moved = map(group.own, _applied(group.alone(spec), needs, planning=planning))
        of_rules += [finding for finding in moved if finding is not None]
    return [finding for finding in of_rules if not _depends_on(finding, broken)]


def _applied(spec: Spec, needs: Needs | None, *, planning: bool) -> Iterator[Finding]:
    """Yields the findings of the table and of all rules."""
    yield from conflicts(Job(spec, needs))
    for code, rules in _RULES:
        applied = (rule for rule in rules if not (planning and rule is ray_address))
        yield from coded((finding for rule in applied for finding in rule(spec)), code)
    if needs:
        of_algorithm = (finding for rule in ALGORITHM_RULES for finding in rule(spec, needs))
        yield from coded(of_algorithm, Code.ALGORITHM)
    yield from coded(model_findings(spec), Code.MODEL)


def _depends_on(finding: Finding, broken: Sequence[KeyPath]) -> bool:
    """A related table is one whose every key matters."""
    return any(
        _is_within(finding.path, bad)
        or any(_is_within(path, bad) or _is_within(bad, path) for path in finding.related)
        for bad in broken
    )


def _is_within(path: KeyPath, table: KeyPath) -> bool:
    return path[: len(table)] == table


def _removable(path: KeyPath) -> KeyPath:
    """Returns the key to remove for a broken value: the whole array for one of its elements."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _repaired(data: dict[str, Any], broken: Sequence[KeyPath]) -> Spec | None:
    """Returns the spec with broken keys at their defaults or, without a default, at a placeholder.

    None if the rest is still not valid.
    """
    copy = deepcopy(data)
    for path in broken:
        _remove(copy, path)
    for _ in range(3):  # a placeholder table may itself have required keys
        try:
            return validate_spec(copy)
        except ValidationError as error:
            missing = [
                detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == "missing"
            ]
        for path in missing:
            table_at(copy, path[:-1])[path[-1]] = {} if len(path) == 1 else "unknown"
    return None


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    table = table_at(data, path[:-1])
    if path and isinstance(table, dict):
        table.pop(path[-1], None)


def table_at(data: Any, path: KeyPath) -> Any:
    """Returns the value at a path; None if the path does not exist."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
