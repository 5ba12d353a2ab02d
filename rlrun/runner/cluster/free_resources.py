"""Asks a Ray cluster what it has free, in a process of its own: Ray replaces signal handlers where it joins.

this process ── address ─▶ a process that joins ── JSON ─▶ free CPUs and GPUs of each node that answers
"""

import json
import subprocess

from rlrun.specs.safe_python import own_python

_SECONDS = 90.0
"""Deadline for a cluster to answer."""
_ASK = """
import json, sys, time
from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_nodes import alive_nodes

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + float(sys.argv[2])
while True:
    free = ray._private.state.available_resources_per_node()
    total = {entry["NodeID"]: entry["Resources"] for entry in ray.nodes() if entry["Alive"]}
    kinds = ("CPU", "GPU")
    used = [own.get(kind, 0) > free.get(id_, {}).get(kind, 0) for id_, own in total.items() for kind in kinds]
    if not any(used) or time.monotonic() > deadline:
        break
    time.sleep(0.5)
answering = [id_ for id_, node in alive_nodes().items() if node.is_reachable()]
print(json.dumps([{kind: free.get(id_, {}).get(kind, 0.0) for kind in kinds} for id_ in answering]))
"""


def free_by_node(address: str, *, patience: float = 0.0) -> list[dict[str, float]]:
    """Returns what each node of a cluster has free, by Ray's names. `patience`: how many seconds to wait if
    something is in use, because a job that has just ended may still hold its devices.

    Raises ValueError if the cluster does not answer.
    """
    command = own_python("-c", _ASK, address, str(patience))
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS + patience, check=True
        )
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().rpartition("\n")[2]
        raise ValueError(
            f"the Ray cluster at cluster.address = {address!r} does not answer: {reason}"
        ) from None
    free: list[dict[str, float]] = json.loads(answer.stdout.strip().rpartition("\n")[2])
    return free
