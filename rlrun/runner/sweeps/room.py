"""How many trials run at the same time, and on which devices.

GPUs of this host     each trial sees GPUs of its own (CUDA_VISIBLE_DEVICES)
a Ray cluster         Ray places each trial on free devices
no GPUs               trials share the cores
"""

import os
from collections.abc import Mapping, Sequence

from rlrun.runner.cluster.free_resources import free_by_node
from rlrun.runner.cluster.placement import place
from rlrun.runner.planning.hardware import driver_gpus
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.sections.job import Spec

Slot = Mapping[str, str]
"""Environment variables of a trial."""


def slots_for(spec: Spec) -> list[Slot]:
    """Returns a slot for each trial that may run at the same time.

    Raises ValueError if `sweep.parallel` is more than the devices have room for, or there is no room at all.
    """
    assert spec.sweep is not None
    if spec.cluster.address is not None:
        free = free_by_node(spec.cluster.address)
        room = trials_that_fit(
            _needed(spec), {kind: sum(node[kind] for node in free) for kind in ("CPU", "GPU")}
        )
        return [{}] * _at_a_time(spec.sweep.parallel, room)
    if spec.cluster.gpus_per_node:
        return gpu_slots(_visible_gpus(), spec.cluster.gpus_per_node, spec.sweep.parallel)
    return [{}] * (spec.sweep.parallel or 1)


def gpu_slots(gpus: Sequence[str], per_trial: int, parallel: int | None) -> list[Slot]:
    """Returns which GPUs each of the trials that run at the same time sees."""
    count = _at_a_time(parallel, len(gpus) // per_trial)
    groups = [gpus[number * per_trial : (number + 1) * per_trial] for number in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups]


def trials_that_fit(needed: Mapping[str, float], free: Mapping[str, float]) -> int:
    """Returns how many trials fit at the same time into what is free, by Ray's names of resources."""
    return int(min(free.get(name, 0.0) // amount for name, amount in needed.items() if amount))


def _at_a_time(parallel: int | None, room: int) -> int:
    if room < 1:
        raise ValueError("the free devices have no room for a trial: see rlrun plan, and wait for other jobs")
    if parallel is not None and parallel > room:
        raise ValueError(f"sweep.parallel = {parallel}, and the free devices have room for {room} trials")
    return parallel or room


def _needed(spec: Spec) -> dict[str, float]:
    return place(make_plan(spec)).required


def _visible_gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number in range(len(driver_gpus()))]
