"""Reserves the bundles of elastic engines: a placement group of its own for each slot, on any node with room.

    slot ── placement group ──▶ Ray (and its autoscaler) ──▶ a node, now or later
                │                     the node is lost ─▶ Ray looks for another one
                └── given back while trainer ranks wait for a node: these come first

Ray keeps looking for room for a group as long as the group exists, so joining again needs no other request.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.runner.cluster.actor import visible_gpus
from rlrun.runner.cluster.placement import BundleSlot, Placement
from rlrun.runner.cluster.ray_environment import PROCESS_VARIABLES, ray
from rlrun.runner.cluster.ray_nodes import Node, alive_nodes, node_ids
from rlrun.runner.contracts.errors import MachinesFailed

logger = logging.getLogger(__name__)

_OTHERS_SECONDS = 5.0
"""How long a job that has enough engines waits at its start for the others."""
_POLL_SECONDS = 0.2
_GPU_SECONDS = 60.0
"""Deadline for a node to report its GPUs."""
A_LITTLE = {"num_cpus": 0, "num_gpus": 0.01, "runtime_env": {"env_vars": PROCESS_VARIABLES}}
"""The options of a short remote call in a bundle that no process uses yet."""


class ElasticReservation:
    """The placement groups of elastic engines, those that have a node and those that wait for one."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._slots = placement.elastic
        self._numbers = {
            bundle: (slot.bundle, number)
            for slot in self._slots
            for number, bundle in enumerate(slot.bundles)
        }
        """For each bundle, the first bundle of its slot, and its number in the slot's group."""
        self._groups: dict[int, Any] = {}
        """The group of each slot, by the slot's first bundle."""
        self._nodes: dict[int, Node] = {}
        self._gpus: dict[int, list[str]] = {}
        self._held_back = False

    def __contains__(self, bundle: int) -> bool:
        return bundle in self._numbers

    def make(self, seconds: float) -> None:
        """Asks for all bundles, and blocks until enough engines have theirs, and somewhat longer for the
        others. Raises MachinesFailed if not enough have theirs within `seconds`.
        """
        least = self._placement.min_engines
        if least is None:
            return
        started = time.monotonic()
        while True:
            alive = alive_nodes()
            placed = sum(self.have_room(slots, alive) for slots in self._placement.engines)
            waited = time.monotonic() - started
            if placed == len(self._placement.engines) or (placed >= least and waited > _OTHERS_SECONDS):
                return
            if waited > seconds:
                raise MachinesFailed(
                    f"the cluster had room for {placed} engines within {seconds:g} s, and the job needs "
                    f"{least} (engine.min_count): wait for other jobs to end, or add a node"
                )
            time.sleep(_POLL_SECONDS)

    def is_placed(self, slot: BundleSlot) -> bool:
        """Returns whether a slot had a node when that was last looked up."""
        return slot.bundle in self._nodes

    def have_room(self, slots: Sequence[BundleSlot], alive: Mapping[str, Node]) -> bool:
        """Returns whether an engine's slots have nodes that answer; asks Ray for those that are missing, and
        blocks. `alive`: the nodes of the cluster.
        """
        placed = [self._find(slot, alive) for slot in slots]  # every slot, so that Ray looks for all of them
        return all(placed)

    def _find(self, slot: BundleSlot, alive: Mapping[str, Node]) -> bool:
        self._nodes.pop(slot.bundle, None)
        group = self._groups.get(slot.bundle)
        if group is None and not self._held_back:
            group = self._ask(slot)
        node = None if group is None else _node_of(group, alive)
        if node is None and self._held_back:
            self._withdraw(slot)
        if node is None or (slot.beside and not self._ask_gpus(slot)):
            return False
        self._nodes[slot.bundle] = node
        return True

    def hold_back(self, held: bool) -> None:
        """While `held`, slots without a node ask for none, so that trainer ranks get the room first."""
        self._held_back = held
        for slot in self._slots if held else ():
            if not self.is_placed(slot):
                self._withdraw(slot)

    def node(self, slot: BundleSlot) -> Node:
        """Returns the node of a slot that has one."""
        return self._nodes[slot.bundle]

    def gpus(self, slot: BundleSlot) -> list[str]:
        """Returns the ids of the GPUs of a slot with several."""
        return self._gpus[slot.bundle]

    def group_of(self, bundle: int) -> tuple[Any, int]:
        """Returns the placement group of a bundle, and the bundle's number in it."""
        first, number = self._numbers[bundle]
        return self._groups[first], number

    def give_back(self) -> None:
        """Frees the reserved resources, and ends the search for others."""
        for group in self._groups.values():
            ray.util.remove_placement_group(group)

    def _withdraw(self, slot: BundleSlot) -> None:
        if (group := self._groups.pop(slot.bundle, None)) is not None:
            ray.util.remove_placement_group(group)

    def _ask(self, slot: BundleSlot) -> Any:
        bundles = [self._placement.bundles[number].resources for number in slot.bundles]
        group = ray.util.placement_group(bundles, strategy="STRICT_PACK")
        self._groups[slot.bundle] = group
        return group

    def _ask_gpus(self, slot: BundleSlot) -> bool:
        """Asks a slot's node for the ids of its GPUs; returns whether it answered."""
        remote = ray.remote(visible_gpus)
        asked = [in_group(remote, *self.group_of(bundle), A_LITTLE).remote() for bundle in slot.bundles]
        try:
            self._gpus[slot.bundle] = ray.get(asked, timeout=_GPU_SECONDS)
        except ray.exceptions.RayError as error:
            logger.warning("a node did not report which GPUs were reserved: %s", error)
            return False
        return True


def _node_of(group: Any, alive: Mapping[str, Node]) -> Node | None:
    """Returns the node of a placement group, if it has one that answers."""
    node = alive.get(node_ids(group)[0] or "")
    return node if node is not None and node.is_reachable() else None


def in_group(actor_or_task: Any, group: Any, number: int, share: Mapping[str, Any]) -> Any:
    """Returns a remote function or class, set to run in a bundle of a placement group with a share of it."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=number
    )
    return actor_or_task.options(scheduling_strategy=strategy, **share)
