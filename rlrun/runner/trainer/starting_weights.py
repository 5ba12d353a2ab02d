"""What the policy's parameters begin with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlrun.converters.architecture import Architecture
from rlrun.converters.hf_names import HfTensor
from rlrun.converters.safetensors_folder import WeightFolder, random_tensor
from rlrun.specs.job import Spec


@contextmanager
def starting_weights(
    spec: Spec, folder: Path, model: Architecture
) -> Iterator[Callable[[HfTensor], torch.Tensor]]:
    """Reads a tensor to begin with: from the model's folder, or drawn at random."""
    if spec.model.random_init:
        yield lambda tensor: random_tensor(tensor, model, spec.seed)
        return
    with WeightFolder(folder, model) as weights:
        yield lambda tensor: weights.read(tensor.name)
