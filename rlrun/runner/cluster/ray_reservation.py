"""Reserves the job's resources in a Ray cluster: one placement group with the bundles of the placement."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rlrun.runner.cluster.actor import visible_gpus
from rlrun.runner.cluster.placement import BundleSlot, Placement, match_reserved_bundles
from rlrun.runner.cluster.ray_environment import OWN_GPUS_ONLY, ray
from rlrun.runner.contracts.errors import JobError

_SECONDS = 60.0
"""Deadline for the cluster to reserve the bundles, and for the nodes to report their GPUs."""
_A_LITTLE = {"num_cpus": 0, "num_gpus": 0.01, "runtime_env": {"env_vars": OWN_GPUS_ONLY}}
"""The options of a short remote call in a bundle that no process uses yet."""


class Reservation:
    """The reserved bundles of a placement. Call `make`, then `look`, before processes start in them."""

    def __init__(self, placement: Placement, where: str) -> None:
        """`where` names the cluster in messages, such as `this host`."""
        self._placement = placement
        self._where = where
        self._group: Any = None
        self._reserved: list[int] = []
        """For each planned bundle, the number of the reserved bundle that takes its place."""
        self._gpus: dict[int, str] = {}
        """GPU ids, by planned bundle, of the bundles that belong to slots with several GPUs."""

    async def make(self) -> None:
        """Reserves the bundles. Raises JobError if the cluster is too small or still busy after a minute.

        A job that only generates, with external engines, starts no processes and reserves nothing.
        """
        if not self._placement.bundles:
            return
        self._check_resources()
        bundles = [
            {name: amount for name, amount in (("CPU", bundle.cpus), ("GPU", bundle.gpus)) if amount}
            for bundle in self._placement.bundles
        ]
        self._group = ray.util.placement_group(bundles, strategy=self._placement.strategy)
        try:
            async with asyncio.timeout(_SECONDS):
                await self._group.ready()
        except TimeoutError:
            raise JobError(
                f"the cluster did not free {_amounts(self._required())} within {_SECONDS:g} s; it has "
                f"{_amounts(ray.available_resources())} free. Wait for other jobs to end, or lower "
                "cluster.gpus_per_node or engine.count"
            ) from None

    def look(self) -> None:
        """Matches reserved bundles to planned ones, and asks the nodes for the GPU ids of wide slots.

        Blocks until the nodes answer. Raises JobError if the GPUs of one server are on different nodes.
        """
        if self._group is None:
            return
        nodes = [node for _, node in sorted(self._nodes().items())]
        try:
            self._reserved = match_reserved_bundles(self._placement, nodes)
        except ValueError as error:
            raise JobError(f"{error}; free whole nodes for the job, or lower engine.tensor") from None
        bundles = sorted({i for slot in self._placement.wide for i in (slot.bundle, *slot.beside)})
        ids = [self.in_bundle(ray.remote(visible_gpus), bundle, _A_LITTLE).remote() for bundle in bundles]
        try:
            self._gpus = dict(zip(bundles, ray.get(ids, timeout=_SECONDS), strict=True))
        except ray.exceptions.RayError as error:
            raise JobError(f"the nodes did not report which GPUs were reserved: {error}") from error

    def reach(self, slot: BundleSlot) -> list[str]:
        """Returns the ids of the GPUs of a slot with several GPUs; an empty list for other slots."""
        return [self._gpus[bundle] for bundle in (slot.bundle, *slot.beside)] if slot.beside else []

    def host(self, slot: BundleSlot) -> str:
        """Returns the address of a slot's node."""
        node = self._nodes()[self._reserved[slot.bundle]]
        return str(next(entry["NodeManagerAddress"] for entry in ray.nodes() if entry["NodeID"] == node))

    def in_bundle(self, actor_or_task: Any, bundle: int, share: Mapping[str, Any]) -> Any:
        """Returns the remote function or class `what`, set to run in a planned bundle with a share of it."""
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._reserved[bundle]
        )
        return actor_or_task.options(scheduling_strategy=strategy, **share)

    def give_back(self) -> None:
        """Frees the reserved resources."""
        if self._group is not None:
            ray.util.remove_placement_group(self._group)

    def _nodes(self) -> dict[int, str]:
        """Returns the id of the node of each reserved bundle."""
        nodes: dict[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return nodes

    def _required(self) -> dict[str, float]:
        return {"GPU": self._placement.gpus, "CPU": self._placement.cpus}

    def _check_resources(self) -> None:
        have = ray.cluster_resources()
        for name, required in self._required().items():
            if required > have.get(name, 0.0):
                raise JobError(
                    f"the spec asks for {_amount(name, required)}, and {self._where} has "
                    f"{_amount(name, have.get(name, 0.0))}; lower cluster.gpus_per_node, trainer.parallel or "
                    "engine.count (see rlrun plan)"
                )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(_amount(name, resources.get(name, 0.0)) for name in ("GPU", "CPU"))


def _amount(resource: str, number: float) -> str:
    """Returns a number with its unit, such as `2 GPUs`."""
    return f"{number:g} {'GPUs' if resource == 'GPU' else 'CPU cores'}"
