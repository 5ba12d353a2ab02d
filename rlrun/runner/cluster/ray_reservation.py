"""Reserves the job's resources in a Ray cluster: a placement group for the bundles of each planned node.

Ray places all bundles of a group on one host (STRICT_PACK). In a single group over several hosts it would mix
the bundles of planned nodes, and neighbouring ranks would be on different hosts. Elastic engines have groups
of their own (rlrun.runner.cluster.ray_elastic).
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rlrun.runner.cluster.actor import visible_gpus
from rlrun.runner.cluster.placement import Bundle, BundleSlot, Placement, match_nodes
from rlrun.runner.cluster.ray_elastic import A_LITTLE, ElasticReservation, in_group
from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_nodes import Node, alive_nodes, node_ids
from rlrun.runner.contracts.errors import JobError, MachinesFailed, NodeLost
from rlrun.specs.problems.codes import Code

logger = logging.getLogger(__name__)

_SECONDS = 60.0
"""Deadline for the cluster to reserve the bundles, and for the nodes to report their GPUs."""
_POLL_SECONDS = 1.0


class Reservation:
    """The reserved bundles of a placement. Call `make`, then `look`, before processes start in them."""

    def __init__(self, placement: Placement, where: str) -> None:
        """`where` names the cluster in messages, such as `this host`."""
        self._placement = placement
        self._where = where
        self._elastic = ElasticReservation(placement)
        self._groups: list[Any] = []
        self._nodes: list[list[Node]] = []
        """The node of each bundle of each group."""
        self._reserved: dict[int, tuple[int, int]] = {}
        """For each planned bundle, its group and its number in the group."""
        self._gpus: dict[int, str] = {}
        """GPU ids, by planned bundle, of the bundles that belong to slots with several GPUs."""

    def make(self) -> None:
        """Reserves the bundles, and blocks until they are reserved.

        Raises JobError if the cluster is too small, and MachinesFailed if it is still busy after a minute.

        A job that only generates, with external engines, starts no processes and reserves nothing.
        """
        if self._placement.bundles:
            self._check_resources()
        self._groups = [
            ray.util.placement_group([bundle.resources for bundle in bundles], strategy="STRICT_PACK")
            for bundles in self._bundles_by_node()
        ]
        try:
            ray.get([group.ready() for group in self._groups], timeout=_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise MachinesFailed(
                f"the cluster did not free {_amounts(self._placement.required)} within {_SECONDS:g} s; it "
                f"has {_amounts(ray.available_resources())} free. Wait for other jobs to end, or lower "
                "cluster.gpus_per_node or engine.count"
            ) from None
        self._elastic.make(_SECONDS)

    def look(self) -> None:
        """Matches reserved bundles to planned ones, and asks the hosts for the GPU ids of wide slots.

        Blocks until the hosts answer. Raises MachinesFailed if they do not.
        """
        if not self._note_nodes():
            raise MachinesFailed("a node of the cluster was lost while it was being reserved; launch again")
        matches = match_nodes(self._bundles_by_node(), [nodes[0].address for nodes in self._nodes])
        self._reserved = {
            bundle: (group, number)
            for group, bundles in zip(matches, self._placement.by_node, strict=True)
            for number, bundle in enumerate(bundles)
        }
        bundles = sorted({bundle for slot in self._placement.wide for bundle in slot.bundles})
        ids = [self.in_bundle(ray.remote(visible_gpus), bundle, A_LITTLE).remote() for bundle in bundles]
        try:
            self._gpus = dict(zip(bundles, ray.get(ids, timeout=_SECONDS), strict=True))
        except ray.exceptions.RayError as error:
            raise MachinesFailed(f"the nodes did not report which GPUs were reserved: {error}") from error

    def reach(self, slot: BundleSlot) -> list[str]:
        """Returns the ids of the GPUs of a slot with several GPUs; an empty list for other slots."""
        if not slot.beside:
            return []
        if self.is_elastic(slot):
            return self._elastic.gpus(slot)
        return [self._gpus[bundle] for bundle in slot.bundles]

    def node(self, slot: BundleSlot) -> Node:
        """Returns a slot's node, as of the last `look`, `wait_for_nodes` or `has_room`."""
        if self.is_elastic(slot):
            return self._elastic.node(slot)
        group, number = self._reserved[slot.bundle]
        return self._nodes[group][number]

    def is_elastic(self, slot: BundleSlot) -> bool:
        """Returns whether a slot is one of an elastic engine."""
        return slot.bundle in self._elastic

    def is_placed(self, slot: BundleSlot) -> bool:
        """Returns whether a slot has a node, as far as that is known: only elastic engines may have none."""
        return not self.is_elastic(slot) or self._elastic.is_placed(slot)

    def has_room(self, slots: Sequence[BundleSlot]) -> bool:
        """Returns whether elastic slots have nodes that answer, and notes these nodes; blocks."""
        return self._elastic.have_room(slots, alive_nodes())

    def wait_for_nodes(self, seconds: float) -> None:
        """Returns when every bundle has a node that answers, except those of elastic engines. Ray moves those
        of a lost node to another one.

        Raises NodeLost if that takes longer than `seconds`.
        """
        if self._note_nodes():
            return
        self._elastic.hold_back(True)
        try:
            self._wait(seconds)
        finally:
            self._elastic.hold_back(False)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        lost = sorted({node.address for node in chain(*self._nodes) if not node.is_reachable()})
        names = ", ".join(lost)
        if lost:
            logger.warning("node %s is lost; waiting up to %g s for another one in its place", names, seconds)
        while not self._note_nodes():
            if time.monotonic() > deadline:
                raise NodeLost(
                    f"node {names} of the cluster is lost, and no other one had the resources free within "
                    f"{seconds:g} s (fault_tolerance.node_timeout): add a node to the cluster, then launch "
                    "again with --resume"
                )
            time.sleep(_POLL_SECONDS)

    def in_bundle(self, actor_or_task: Any, bundle: int, share: Mapping[str, Any]) -> Any:
        """Returns a remote function or class, set to run in a planned bundle with a share of it."""
        if bundle in self._elastic:
            return in_group(actor_or_task, *self._elastic.group_of(bundle), share)
        group, number = self._reserved[bundle]
        return in_group(actor_or_task, self._groups[group], number, share)

    def give_back(self) -> None:
        """Frees the reserved resources."""
        self._elastic.give_back()
        for group in self._groups:
            ray.util.remove_placement_group(group)

    def _bundles_by_node(self) -> list[list[Bundle]]:
        bundles = self._placement.bundles
        return [[bundles[number] for number in numbers] for numbers in self._placement.by_node]

    def _note_nodes(self) -> bool:
        """Notes the node of each bundle; returns False where one has none that answers, and notes nothing."""
        alive = alive_nodes()
        nodes = [[alive.get(id_ or "") for id_ in node_ids(group)] for group in self._groups]
        placed = [[node for node in group if node is not None] for group in nodes]
        if placed != nodes or not all(node.is_reachable() for node in set(chain(*placed))):
            return False
        self._nodes = placed
        return True

    def _check_resources(self) -> None:
        """Raises JobError if the cluster, or each of its hosts, is too small even when it is idle."""
        have = ray.cluster_resources()
        for name, required in self._placement.required.items():
            if required > have.get(name, 0.0):
                raise JobError(
                    f"the spec asks for {_amount(name, required)}, and {self._where} has "
                    f"{_amount(name, have.get(name, 0.0))}; lower cluster.gpus_per_node, trainer.parallel or "
                    "engine.count (see rlrun plan)",
                    code=Code.CLUSTER,
                )
        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for bundles in self._placement.needed:
            required_here = dict(sum((Counter(bundle.resources) for bundle in bundles), Counter[str]()))
            if not any(_fits(required_here, host) for host in hosts):
                raise JobError(
                    f"the spec asks for a node with {_amounts(required_here)}, and no host of {self._where} "
                    "is that large; lower cluster.gpus_per_node, cluster.threads or engine.count, or raise "
                    "cluster.nodes (see rlrun plan)",
                    code=Code.CLUSTER,
                )


def _fits(required: Mapping[str, float], host: Mapping[str, float]) -> bool:
    return all(amount <= host.get(name, 0.0) for name, amount in required.items())


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(_amount(name, resources.get(name, 0.0)) for name in ("GPU", "CPU"))


def _amount(resource: str, number: float) -> str:
    """Returns a number with its unit, such as `2 GPUs`."""
    return f"{number:g} {'GPUs' if resource == 'GPU' else 'CPU cores'}"
