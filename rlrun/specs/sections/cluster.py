"""`[cluster]`: the machines."""

from typing import Literal

from pydantic import Field

from rlrun.specs.sections.section import Section


class ClusterSpec(Section):
    """Where trainer ranks and engines are placed."""

    address: str | None = None
    """Ray cluster to join. None: start Ray on this host for the job and end it afterwards."""
    nodes: int = Field(default=1, ge=1)
    """Nodes the job uses."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs the job uses on each node; 0 runs on CPU."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """Engines share the trainer's devices and take turns, or have their own."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each trainer rank and engine. None: the cores of the host, shared out by placement."""
