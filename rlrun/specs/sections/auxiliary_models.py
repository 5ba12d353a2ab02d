"""`[reference]`, `[teacher]` and `[critic]`: the auxiliary models, for algorithms that need them."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.section import Section
from rlrun.specs.sections.trainer import ParallelSpec

PROMPT, LABEL, SOLUTION, FEEDBACK = "prompt", "label", "solution", "feedback"
"""The names in `teacher.prompt` that stand for something else than a key of the row's metadata."""


class ReferenceSpec(Section):
    """The reference policy, from which a KL term measures the distance. The trainer holds it in host memory
    between its passes, or engines serve it."""

    path: Annotated[str | None, PathMarker("model")] = None
    """Hugging Face id or folder of a model with the policy's architecture and tokenizer, which is the
    reference. None: the model of `model.path`."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id. None: the default branch."""
    update_interval: int | None = Field(default=None, ge=1)
    """Number of steps after which the current policy replaces the reference, each time. None: the reference
    stays as it is."""
    engine: str | None = None
    """Name of the `[[engines]]` that serve the reference, so that the trainer needs no pass for it. None: the
    trainer computes its log-probs."""


class ShardingSpec(Section):
    """The parallel layout of an auxiliary model on the trainer's ranks; the product of the degrees is their
    number."""

    fsdp: int = Field(default=1, ge=1)
    """Number of ranks that shard parameters, gradients and optimizer state."""
    replicate: int = Field(default=1, ge=1)
    """Number of replicas of the sharded group (HSDP)."""
    tensor: int = Field(default=1, ge=1)
    """Number of ranks that split each layer's matrices. It must divide the number of attention heads."""


class TeacherSpec(Section):
    """The model that the policy learns from by distillation: another model, with the policy's tokenizer
    unless `tokenizer` is set, or the policy itself with a prompt that tells it more."""

    path: Annotated[str | None, PathMarker("model")] = None
    """Hugging Face id, or a folder with config.json and safetensors, relative to the file that sets it. The
    trainer's ranks load it. Set one of `path`, `engine` and `weights`, or `adapter` alone."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id. None: the default branch."""
    adapter: Annotated[str | None, PathMarker()] = None
    """Folder of a LoRA adapter in peft's layout. With `path` it is merged into that model. Without `path` the
    teacher is the policy's frozen model with this adapter instead of the policy's own, so that no second
    model is loaded; `[trainer.lora]` must have at least its rank and its targets. None: no adapter."""
    engine: str | None = None
    """Name of the `[[engines]]` that serve the teacher, instead of `path` and `adapter`."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Teachers of single sources of the data: `{ 0 = "math", 1 = "code" }` names the `[[engines]]` that serve
    the teacher of the rows with this `source` in their metadata, which a mixture sets to the number of each
    of its sources. The other rows have the teacher of `path`, `engine` or `weights`."""
    weights: Literal["initial", "current", "average"] | None = None
    """The teacher is the policy's own model, in the policy's layout, with these weights. `"initial"`: those
    of `model.path`. `"current"`: those before the step's update. `"average"`: an exponential moving average,
    which starts at the initial ones. None: the teacher is another model."""
    update_rate: float = Field(default=0.05, gt=0, le=1)
    """How far the `"average"` moves towards the policy after each step: 1 replaces it."""
    prompt: str | None = None
    """What the teacher reads in place of the prompt's last message: a text in which `{prompt}` is that
    message, `{label}` the row's label, any other name a key of the row's metadata, `{solution}` the text of a
    successful sample of the same group, and `{feedback}` what rewards or the rollout say of the sample; `{{`
    and `}}` are braces. The response that it scores is the policy's. None: the policy's prompt."""
    tokenizer: Literal["own"] | None = None
    """`"own"`: the teacher of `path` reads the texts of prompts and responses with its own tokenizer and chat
    template, and teaches where its tokens and the policy's have read the same text. None: it has the policy's
    tokens, by the same numbers."""
    success_reward: float = 1.0
    """The least reward of a sample that can be a `{solution}`."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt of the teacher, in tokens. A sample whose prompt would be longer is not distilled. None:
    what the model has room for beside the response."""
    parallel: ShardingSpec | None = None
    """Parallel layout on the trainer's ranks. None: the parameters are sharded over all ranks."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of all engines that serve a teacher."""
        return (*([] if self.engine is None else [self.engine]), *self.sources.values())


class CriticSpec(OptimizerSpec):
    """The critic of an actor-critic algorithm. It estimates values, with a value head instead of the language
    model head."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    path: Annotated[str | None, PathMarker("model")] = None
    """Hugging Face id or folder of a model that the critic starts from, with the policy's architecture and
    tokenizer. Its `score.weight` is the value head, if it has one, as reward models of transformers do. None:
    the critic starts as a copy of the policy, with a value head of zeros."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id. None: the default branch."""
    only_steps: int = Field(default=0, ge=0)
    """Number of steps at the start that train only the critic. The policy and its learning rate schedule do
    not change during these steps."""
    parallel: ShardingSpec | None = None
    """Parallel layout on the trainer's ranks. None: the parameters are sharded over all ranks."""


def auxiliary_layout(sharding: ShardingSpec | None, ranks: int) -> ParallelSpec:
    """Returns the parallel layout of an auxiliary model on `ranks` trainer ranks."""
    return ParallelSpec(fsdp=ranks) if sharding is None else ParallelSpec(**sharding.model_dump())
