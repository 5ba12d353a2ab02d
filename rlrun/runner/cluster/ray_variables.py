"""Variables that the servers of a Ray cluster read when they start, wherever rlrun starts one."""

RAY_SERVERS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # By default Ray gives its workers a lower priority than all other processes (nice 15).
    "RAY_worker_niceness": "0",
    # Otherwise the GCS keeps 3.4 KiB for every call, for a dashboard that is not running.
    "RAY_task_events_report_interval_ms": "0",
    # On a busy host a new process takes longer than 30 s until it listens.
    "RAY_raylet_start_wait_time_s": "120",
    # Prestarted workers would lack the processes' environment variables and never be used.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
