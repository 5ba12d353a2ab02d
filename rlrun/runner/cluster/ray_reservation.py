"""Reserves the job's resources in a Ray cluster: a placement group, with a bundle for each planned one."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rlrun.runner.cluster.actor import visible_gpus
from rlrun.runner.cluster.placement import BundleSlot, Placement, match_reserved_bundles
from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.contracts.errors import JobError

_SECONDS = 60.0
_A_LITTLE = {"num_cpus": 0, "num_gpus": 0.01}
"""The share of an unused bundle that a short remote call takes."""


class Reservation:
    """The reserved bundles of a placement. Call `make`, then `look`, before processes start in them."""

    def __init__(self, placement: Placement, where: str) -> None:
        """`where` names the cluster: `this host`."""
        self._placement = placement
        self._where = where
        self._group: Any = None
        self._reserved: list[int] = []
        """Number of the reserved bundle that is used for each planned one."""
        self._gpus: dict[int, str] = {}
        """Ids of the GPUs of planned bundles that slots reach over."""

    async def make(self) -> None:
        """Reserves the bundles. Raises JobError where the cluster has too little or does not free it in time.

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
                f"the cluster did not free {_amounts(self._wanted())} within {_SECONDS:g} s; free are "
                f"{_amounts(ray.available_resources())}. Wait for other jobs to end, or ask for less"
            ) from None

    def look(self) -> None:
        """Find out which bundle is which, and the ids of GPUs that a slot of several reaches; takes a moment.

        JobError where GPUs of one server lie apart.
        """
        if self._group is None:
            return
        nodes = self._nodes()
        try:
            self._reserved = match_reserved_bundles(self._placement, [nodes[one] for one in sorted(nodes)])
        except ValueError as error:
            raise JobError(f"{error}; free whole nodes for the job, or lower engine.tensor") from None
        bundles = sorted({i for slot in self._placement.wide for i in (slot.bundle, *slot.beside)})
        ids = [self.seated(ray.remote(visible_gpus), bundle, _A_LITTLE).remote() for bundle in bundles]
        try:
            self._gpus = dict(zip(bundles, ray.get(ids, timeout=_SECONDS), strict=True))
        except ray.exceptions.RayError as error:
            raise JobError(f"the nodes did not say which GPUs were reserved: {error}") from error

    def reach(self, slot: BundleSlot) -> list[str]:
        """Ids of the GPUs that a slot of several may use."""
        return [self._gpus[one] for one in (slot.bundle, *slot.beside)] if slot.beside else []

    def host(self, slot: BundleSlot) -> str:
        """Returns the address of a slot's node."""
        node = self._nodes()[self._reserved[slot.bundle]]
        return str(next(one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == node))

    def seated(self, what: Any, bundle: int, share: Mapping[str, Any]) -> Any:
        """A remote function or class with that share of a planned bundle."""
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._reserved[bundle]
        )
        return what.options(scheduling_strategy=strategy, **share)

    def give_back(self) -> None:
        """Frees the reserved resources."""
        if self._group is not None:
            ray.util.remove_placement_group(self._group)

    def _nodes(self) -> dict[int, str]:
        """On which node each reserved bundle lies."""
        found: dict[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return found

    def _wanted(self) -> dict[str, float]:
        return {"GPU": self._placement.gpus, "CPU": self._placement.cpus}

    def _check_resources(self) -> None:
        have = ray.cluster_resources()
        for name, wanted in self._wanted().items():
            if wanted > have.get(name, 0.0):
                raise JobError(
                    f"the spec asks for {_amount(name, wanted)}, and {self._where} has "
                    f"{_amount(name, have.get(name, 0.0))}; lower cluster.gpus_per_node, trainer.parallel or "
                    "engine.count (see rlrun plan)"
                )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(_amount(name, resources.get(name, 0.0)) for name in ("GPU", "CPU"))


def _amount(resource: str, number: float) -> str:
    """Names the resource that there is too little of, and no other: GPUs need cores too, which confuses."""
    return f"{number:g} {'GPUs' if resource == 'GPU' else 'CPU cores'}"
