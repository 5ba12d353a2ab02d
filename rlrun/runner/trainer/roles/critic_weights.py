"""The weights that a critic starts from: the policy's with an empty value head, or those of a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import SCORE
from rlrun.runner.trainer.parameters.starting_weights import Read, scoring_weights, starting_policy
from rlrun.specs.sections.job import Spec


@contextmanager
def starting_critic(
    spec: Spec, model_folder: Path, critic_folder: Path | None, model: Architecture
) -> Iterator[Read]:
    """Yields a function that returns a tensor of the critic as it starts: of `critic_folder`, else of the
    policy, with a value head of 0.

    Raises ValueError if the folder's tensors are not those of the architecture.
    """
    if critic_folder is None:
        with starting_policy(spec, model_folder, model) as read:
            yield lambda tensor: torch.zeros(tensor.shape) if tensor.name == SCORE else read(tensor)
        return
    with scoring_weights(critic_folder, model) as read:
        yield read
