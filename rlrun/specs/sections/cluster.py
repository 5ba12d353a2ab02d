"""`[cluster]`: the machines of a job."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.sections.section import Section


class ClusterSpec(Section):
    """The machines that trainer ranks and engines are placed on."""

    address: str | None = None
    """Address of the Ray cluster to join. None: start Ray on this host for the job and stop it afterwards."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes that the job uses."""
    gpus_per_node: int = Field(default=0, ge=0)
    """Number of GPUs that the job uses on each node. 0 runs the job on CPUs."""
    node_gpus: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None, min_length=1)
    """Number of GPUs of each node, where nodes differ: `[8, 8, 4]`. The largest of them is `gpus_per_node`.
    None: every node has `gpus_per_node`."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """Which devices engines use. `colocated`: the trainer's devices, in turns. `disaggregated`: devices that
    the trainer does not use, which asynchronous rollouts need."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each trainer rank and each engine. None: the cores of the host, divided among its
    processes according to `placement`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the trainer ranks, the engines and their servers, set before their
    interpreters start. A secret is written as `"${env:NAME}"`: its value comes from the environment of
    `rlrun launch`, and is in no file and no log."""

    @property
    def gpus_of_nodes(self) -> tuple[int, ...]:
        """The number of GPUs that the job uses on each node."""
        return self.node_gpus or (self.gpus_per_node,) * self.nodes

    @property
    def gpus(self) -> int:
        """The number of GPUs of the job; 0 on CPUs."""
        return sum(self.gpus_of_nodes)
