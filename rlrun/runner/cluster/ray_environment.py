"""Ray, imported after the variables are set that it reads then: take `ray` from here, and nowhere else."""

import os

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would let whatever else runs here go before our processes (nice 15).
    "RAY_worker_niceness": "0",
    # The GCS would keep 3.4 KiB of every call for a dashboard that nobody looks at.
    "RAY_task_events_report_interval_ms": "0",
    # A busy host takes longer than 30 s until a new process listens.
    "RAY_raylet_start_wait_time_s": "120",
    # Where the GCS or the raylet dies, or hangs, there is time to save the job: calls between its processes
    # work without them. Ray's own values are 60 s until it ends the driver, and 15 s until the GCS takes a
    # raylet for dead and has its processes end (a check every 3 s).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_health_check_failure_threshold": "200",
    # Bytes of an argument that travels with its call; a detour through the object store takes 2 ms.
    "RAY_max_direct_call_object_size": str(1 << 20),
    # Workers made ahead would lack our environment variables, and be made in vain.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})

import ray as ray  # noqa: E402, PLC0414
