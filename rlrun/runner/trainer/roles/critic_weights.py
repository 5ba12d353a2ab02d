"""The weights that a critic starts from: the policy's with an empty value head, or those of a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from rlrun.converters.families.model_folder import WeightFolder
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.runner.trainer.model.value_head import HEAD
from rlrun.runner.trainer.parameters.starting_weights import Read, starting_policy
from rlrun.specs.sections.job import Spec


@contextmanager
def starting_critic(
    spec: Spec, model_folder: Path, critic_folder: Path | None, model: Architecture
) -> Iterator[Read]:
    """Yields a function that returns a tensor of the critic as it starts: of `critic_folder`, else of the
    policy. A value head that the folder does not have is 0, and its head for the vocabulary is not read.

    Raises ValueError if the folder's tensors are not those of the architecture.
    """
    if critic_folder is None:
        with starting_policy(spec, model_folder, model) as read:
            yield lambda tensor: torch.zeros(tensor.shape) if tensor.name == HEAD.name else read(tensor)
        return
    without_head = replace(model, tied=True, mtp=None)  # a tied head is not a tensor of its own
    with WeightFolder(critic_folder, without_head, further=[HEAD.name]) as weights:

        def read_stored(tensor: HfTensor) -> torch.Tensor:
            if tensor.name == HEAD.name and HEAD.name not in weights:
                return torch.zeros(tensor.shape)
            stored = weights.read(tensor.name)
            if tuple(stored.shape) != tuple(tensor.shape):
                raise ValueError(
                    f"{tensor.name} in {critic_folder} has shape {tuple(stored.shape)}, and a critic's value "
                    f"head {tuple(tensor.shape)}: choose a model that gives one number"
                )
            return stored

        yield read_stored
