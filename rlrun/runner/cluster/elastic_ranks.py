"""Chooses how many trainer ranks a launch begins with, from the devices that are there (`min_fsdp`).

spec ─▶ the same with fsdp, fsdp − 1 … min_fsdp ─▶ those that break no rule ─▶ the first whose bundles fit

The batch, the learning rate and everything else stay; a checkpoint is loaded into whichever layout comes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

from rlrun.plugins.validation import needs_of
from rlrun.runner.cluster.free_resources import free_by_node
from rlrun.runner.cluster.host_gpus import gpus_here
from rlrun.runner.cluster.placement import Bundle, Placement, place
from rlrun.runner.planning.plan import make_plan, plan_for_mode
from rlrun.runner.planning.planned_model import resolve_on_this_host
from rlrun.runner.planning.savings import is_allowed
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.cluster import ClusterSpec
from rlrun.specs.sections.job import Spec

_PATIENCE = 10.0
"""How many seconds a cluster has to free what an earlier launch used."""


def with_present_ranks(loaded: LoadedSpec) -> LoadedSpec:
    """Returns the spec with as many ranks as there are devices for, if it allows fewer than it asks for.

    A spec for which even the smallest layout does not fit is returned as it is: the job's start says what is
    missing. Raises ValueError if the cluster does not answer.
    """
    spec = loaded.spec
    if spec.trainer.parallel.min_fsdp is None or spec.debug.mode in ("rollout", "eval"):
        return loaded
    hosts = _hosts(spec)
    for candidate in layouts(spec):
        if fits(_placement(candidate), hosts):
            return loaded if candidate is spec else _chosen(loaded, candidate)
    return loaded


def layouts(spec: Spec) -> Iterator[Spec]:
    """Yields the specs with `fsdp` ranks and fewer that break no rule, the largest first."""
    yield spec
    parallel = spec.trainer.parallel
    for fsdp in range(parallel.fsdp - 1, (parallel.min_fsdp or parallel.fsdp) - 1, -1):
        smaller = spec.trainer.with_sections(parallel=parallel.with_sections(fsdp=fsdp))
        lost = parallel.world_size - smaller.parallel.world_size
        candidate = spec.with_sections(trainer=smaller, cluster=_smaller_cluster(spec, lost))
        alone = smaller.with_sections(parallel=smaller.parallel.with_sections(min_fsdp=None))
        if is_allowed(candidate.with_sections(trainer=alone), needs_of(spec)):
            yield candidate


def layouts_in_words(spec: Spec) -> str:
    """Returns the layouts that a launch of elastic ranks chooses from, for the plan."""
    whole, *smaller = (candidate.trainer.parallel.fsdp for candidate in layouts(spec))
    if not smaller:
        return f"a launch needs fsdp = {whole}: every smaller one breaks a rule of the spec"
    return f"fsdp = {whole}, or {', '.join(map(str, smaller))} where there are devices for no more"


def fits(placement: Placement, hosts: Sequence[Mapping[str, float]]) -> bool:
    """Returns whether the bundles that a job needs fit into hosts with these free resources, by Ray's names.

    Large nodes are placed first, each on the first host that has room for it.
    """
    free = [dict(host) for host in hosts]
    for needed in sorted(map(_total, placement.needed), key=lambda total: (total["GPU"], total["CPU"]))[::-1]:
        host = next((host for host in free if all(host[kind] >= needed[kind] for kind in needed)), None)
        if host is None:
            return False
        for kind, amount in needed.items():
            host[kind] -= amount
    return True


def _chosen(loaded: LoadedSpec, candidate: Spec) -> LoadedSpec:
    asked, chosen = loaded.spec.trainer.parallel, candidate.trainer.parallel
    reason = (
        f"the trainer has {chosen.world_size} of {asked.world_size} ranks (fsdp = {chosen.fsdp}, at least "
        f"{asked.min_fsdp}): there are devices for no more"
    )
    return replace(loaded, spec=candidate, asked=loaded.spec, layout_reason=reason)


def _hosts(spec: Spec) -> list[dict[str, float]]:
    """Returns what each host has free. A job that starts Ray itself takes as many cores as it needs."""
    if spec.cluster.address is None:
        return [{"GPU": float(gpus_here()), "CPU": inf}]
    return free_by_node(spec.cluster.address, patience=_PATIENCE)


def _placement(spec: Spec) -> Placement:
    return place(plan_for_mode(make_plan(resolve_on_this_host(spec).spec), spec.debug.mode))


def _smaller_cluster(spec: Spec, lost_ranks: int) -> ClusterSpec:
    """Returns a cluster without the devices of so many ranks: GPUs of the last nodes; on CPUs whole nodes, on
    which engines are placed, too, unless these are elastic.
    """
    cluster = spec.cluster
    if not cluster.gpus_per_node:
        ranks = spec.trainer.parallel.world_size
        shrinks = spec.engine.min_count is None
        nodes = ceil(cluster.nodes * (ranks - lost_ranks) / ranks) if shrinks else cluster.nodes
        return cluster.with_sections(nodes=nodes)
    gpus = list(cluster.gpus_of_nodes)
    while lost_ranks:
        taken = min(lost_ranks, gpus[-1])
        lost_ranks -= taken
        gpus[-1:] = [gpus[-1] - taken] if gpus[-1] > taken else []
    unequal = tuple(gpus) if len(set(gpus)) > 1 else None
    return cluster.with_sections(nodes=len(gpus), gpus_per_node=max(gpus), node_gpus=unequal)


def _total(bundles: Sequence[Bundle]) -> dict[str, float]:
    return {"GPU": sum(bundle.gpus for bundle in bundles), "CPU": sum(bundle.cpus for bundle in bundles)}
