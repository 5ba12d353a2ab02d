"""Ray, imported after the variables are set that it reads then: take `ray` from here, and nowhere else."""

import os

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would let whatever else runs here go before our processes (nice 15).
    "RAY_worker_niceness": "0",
    # Bytes of an argument that travels with its call; a detour through the object store takes 2 ms.
    "RAY_max_direct_call_object_size": str(1 << 20),
    # Workers made ahead would lack our environment variables, and be made in vain.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})

import ray as ray  # noqa: E402, PLC0414
