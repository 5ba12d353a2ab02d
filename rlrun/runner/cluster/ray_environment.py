"""Imports Ray after setting the variables that it reads on import. Other modules import `ray` from here."""

import os

from rlrun.runner.cluster.ray_variables import RAY_SERVERS
from rlrun.specs.safe_python import SAFE_PATH, protect_processes

_ENVIRONMENT = RAY_SERVERS | {
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Leaves time to save the job when the GCS or the raylet dies or hangs: calls between the job's processes
    # work without them. By default Ray ends the driver after 60 s, and the GCS takes a raylet for dead after
    # 15 s (one check every 3 s) and ends its processes.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_health_check_failure_threshold": "200",
    # Arguments up to this many bytes are sent with the call; the object store would add 2 ms.
    "RAY_max_direct_call_object_size": str(1 << 20),
}
PROCESS_VARIABLES = {
    # Ray sets CUDA_VISIBLE_DEVICES, also in a cluster that was started with 1 here. Otherwise every rank
    # would compute on the first GPU of its node.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0",
    # It is set to an empty string where no GPU is reserved. Otherwise a job on CPUs would find the GPUs of
    # its host.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
} | SAFE_PATH
"""Variables of each process of a job: it sees only the GPUs that are reserved for it, and neither it nor the
processes that it starts import modules of the current folder."""

os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})

protect_processes()

import ray as ray  # noqa: E402, PLC0414
