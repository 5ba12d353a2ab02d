"""The weights that the policy and the critic start from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlrun.converters.families.model_folder import WeightFolder, random_tensor
from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor
from rlrun.specs.sections.job import Spec


@contextmanager
def starting_weights(
    spec: Spec, folder: Path, model: Architecture
) -> Iterator[Callable[[HfTensor], torch.Tensor]]:
    """Yields a function that returns a starting tensor: read from the model's folder, or drawn at random."""
    if spec.model.random_init:
        yield lambda tensor: random_tensor(tensor, model, spec.seed)
        return
    with WeightFolder(folder, model) as weights:
        yield lambda tensor: weights.read(tensor.name)
