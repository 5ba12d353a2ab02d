"""How many trials run at the same time, and on which devices.

GPUs of this host     each trial sees GPUs of its own (CUDA_VISIBLE_DEVICES)
a Ray cluster         Ray places each trial on free devices
no GPUs               trials share the cores
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from rlrun.runner.cluster.placement import place
from rlrun.runner.planning.hardware import driver_gpus
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.safe_python import own_python
from rlrun.specs.sections.job import Spec

Slot = Mapping[str, str]
"""Environment variables of a trial."""

_SECONDS = 60.0
"""Deadline for a cluster to say what is free."""
_FREE_RESOURCES = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps(ray.available_resources()))
"""


def slots_for(spec: Spec) -> list[Slot]:
    """Returns a slot for each trial that may run at the same time.

    Raises ValueError if `sweep.parallel` is more than the devices have room for, or there is no room at all.
    """
    assert spec.sweep is not None
    if spec.cluster.address is not None:
        room = trials_that_fit(_needed(spec), _free_resources(spec.cluster.address))
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


def _free_resources(address: str) -> dict[str, float]:
    """Asks a Ray cluster what is free, in a process of its own: Ray replaces signal handlers."""
    command = own_python("-c", _FREE_RESOURCES, address)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().rpartition("\n")[2]
        raise ValueError(
            f"the Ray cluster at cluster.address = {address!r} does not answer: {reason}"
        ) from None
    free: dict[str, float] = json.loads(answer.stdout.strip().rpartition("\n")[2])
    return free
