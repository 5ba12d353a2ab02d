"""The policy's engines as groups: those of `[[engine.groups]]`, or all engines of `[engine]` as one group.

    [engine]            sglang = {a = 1, b = 2}, tensor = 2
    [[engine.groups]]   sglang = {b = 3}               ─▶ servers with a = 1, b = 3, of two GPUs
    [[engine.groups]]   tensor = 4                     ─▶ servers with a = 1, b = 2, of four GPUs

Layout, plan, weights and processes read the groups here, so that a job without groups is not another case.
"""

from dataclasses import dataclass, replace

from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.engine import EngineRole, EngineSpec
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines of the policy that are started alike."""

    number: int
    """Its number among the groups."""
    path: KeyPath
    """The table that describes it: `[engine]`, or one of `[[engine.groups]]`."""
    section: EngineSpec
    """The settings of its engines: those of `[engine]`, and over them the group's own."""
    role: EngineRole = "regular"
    own_keys: frozenset[KeyPath] = frozenset()
    """The keys of `[engine]` that the group has its own values of: `("sglang", "mem_fraction_static")`."""

    def alone(self, spec: Spec) -> Spec:
        """Returns the spec of a job that has only this group."""
        groups = spec.engine.groups[self.number : self.number + 1]
        return spec.with_sections(engine=self.section.with_sections(groups=groups))

    def own(self, finding: Finding) -> Finding | None:
        """Returns a finding about `alone` at the group's own key; None if it concerns another key, about
        which the same is found in the job's spec.
        """
        if finding.path[:1] != POLICY or finding.path[1:3] not in {key[:2] for key in self.own_keys}:
            return None
        return replace(finding, path=(*self.path, *finding.path[1:]))


def policy_groups(spec: Spec) -> tuple[EngineGroup, ...]:
    """Returns the groups of the policy's engines; without `[[engine.groups]]` there is one."""
    engine = spec.engine
    if not engine.groups:
        return (EngineGroup(0, POLICY, engine),)
    return tuple(
        EngineGroup(
            number,
            (*POLICY, "groups", number),
            engine.with_sections(
                groups=(),
                count=group.count,
                tensor=group.tensor or engine.tensor,
                sglang=_merged(engine.sglang, group.sglang),
            ),
            group.role,
            frozenset({("tensor",)} if group.tensor else ()) | {("sglang", name) for name in group.sglang},
        )
        for number, group in enumerate(engine.groups)
    )


def has_prefill_servers(spec: Spec) -> bool:
    """Returns whether prompts are computed by other servers than those that generate."""
    return any(group.role != "regular" for group in spec.engine.groups)


def server_ranks(spec: Spec) -> int:
    """Returns the number of tensor-parallel ranks of each of the policy's servers.

    Where groups differ in it, weights travel in files and nothing is compared, and this is the largest.
    """
    return max(group.section.tensor for group in policy_groups(spec))


def _merged(shared: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    """Returns the arguments of both tables; a name may be written with `-` in one and `_` in the other."""
    own_flags = {flag_name(name) for name in own}
    return {name: value for name, value in shared.items() if flag_name(name) not in own_flags} | own
