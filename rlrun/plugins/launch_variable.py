"""The variable by which the processes of a launch are recognised (rlrun.runner.host.child_processes)."""

LAUNCH_VARIABLE = "RLRUN_LAUNCH"
"""Holds the name of the launch that a process belongs to. It is killed when the launch ends."""
