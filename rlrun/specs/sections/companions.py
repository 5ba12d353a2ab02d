"""`[reference]`, `[teacher]`, `[critic]`: the models beside the policy, where the algorithm asks for them."""

from typing import Annotated

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.section import Section
from rlrun.specs.sections.trainer import ParallelSpec


class ReferenceSpec(Section):
    """The policy that a KL term measures the distance to; the trainer keeps it in host memory between its
    passes, or engines serve it."""

    update_interval: int | None = Field(default=None, ge=1)
    """It becomes the current policy every so many steps. None: it stays the one the run began with."""
    engine: str | None = None
    """Name of the `[[engines]]` that serve it, which spares the trainer a pass. None: the trainer has it."""


class ShardingSpec(Section):
    """A layout of its own on the trainer's ranks; the product is their number."""

    fsdp: int = Field(default=1, ge=1)
    """Ranks that shard parameters, gradients and optimizer state."""
    replicate: int = Field(default=1, ge=1)
    """Replicas of the sharded group (HSDP)."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that split each layer's matrices; attention heads must divide by it."""


class TeacherSpec(Section):
    """The model that on-policy distillation learns from; it has the policy's tokenizer."""

    path: Annotated[str | None, PathMarker("model")] = None
    """HF id, or a folder with config.json and safetensors; relative to the file that sets it. The trainer's
    ranks load it."""
    revision: str | None = None
    """Branch, tag or commit of an HF id. None: the default branch."""
    engine: str | None = None
    """Name of the `[[engines]]` that serve it, instead of a path."""
    parallel: ShardingSpec | None = None
    """Its layout on the trainer's ranks. None: sharded over all of them."""


class CriticSpec(OptimizerSpec):
    """The model that says what to expect; it begins as the policy with a value head in place of the head."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    only_steps: int = Field(default=0, ge=0)
    """Steps at the start that train the critic and leave the policy, and its schedule, as they are."""
    parallel: ShardingSpec | None = None
    """Its layout on the trainer's ranks. None: sharded over all of them."""


def side_layout(sharding: ShardingSpec | None, ranks: int) -> ParallelSpec:
    """The layout of a companion on `ranks` trainer ranks."""
    return ParallelSpec(fsdp=ranks) if sharding is None else ParallelSpec(**sharding.model_dump())
