"""The environment variables that rlrun sets in the processes of a job, so that a spec cannot."""

_REASONS = {
    "RANK": "rlrun numbers the ranks",
    "WORLD_SIZE": "rlrun counts the ranks",
    "CUDA_VISIBLE_DEVICES": "each process sees the GPUs that are reserved for it",
    "OMP_NUM_THREADS": "cluster.threads is its value",
    "MKL_NUM_THREADS": "cluster.threads is its value",
}


def why_own_variable(name: str) -> str | None:
    """Returns why a spec cannot set an environment variable; None if it can."""
    if name.startswith(("RAY_", "RLRUN_")):
        return "Ray's and rlrun's variables are those of the launch: export it before `rlrun launch`"
    return _REASONS.get(name)
