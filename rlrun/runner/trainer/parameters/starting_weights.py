"""The weights that the policy and the critic start from."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from rlrun.converters.families.adapter_folder import AdapterFolder
from rlrun.converters.families.model_folder import WeightFolder, named_generator, random_tensor
from rlrun.models.adapters import PEFT_PREFIX, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor
from rlrun.specs.sections.job import Spec

Read = Callable[[HfTensor], torch.Tensor]


@contextmanager
def starting_weights(spec: Spec, folder: Path, model: Architecture) -> Iterator[Read]:
    """Yields a function that returns a starting tensor: read from the model's folder, or drawn at random.

    It also returns the factors of adapters: read from `model.adapter`, or drawn so that their product is 0.
    """
    with ExitStack() as stack:
        if spec.model.random_init:
            read: Read = partial(random_tensor, model=model, seed=spec.seed)
        else:
            weights = stack.enter_context(WeightFolder(folder, model))
            read = lambda tensor: weights.read(tensor.name)  # noqa: E731
        read_factor: Read = partial(random_factor, seed=spec.seed)
        if spec.model.adapter is not None and spec.trainer.lora is not None:
            shape = spec.trainer.lora.shape
            source = AdapterFolder(Path(spec.model.adapter), adapters(model, shape), shape)
            factors = stack.enter_context(source)
            read_factor = lambda tensor: factors.read(tensor.name)  # noqa: E731
        yield lambda tensor: (read_factor if tensor.name.startswith(PEFT_PREFIX) else read)(tensor)


def random_factor(tensor: HfTensor, seed: int) -> torch.Tensor:
    """Returns initial values of an adapter's factor, which depend only on seed and name.

    The second factor is zero. The first is uniform within ±1/√in, as in peft. The whole factor is drawn on
    every rank, because shards that are drawn separately would be equal.
    """
    if tensor.name.endswith(".lora_B.weight"):
        return torch.zeros(tensor.shape)
    bound = tensor.shape[1] ** -0.5
    return torch.empty(tensor.shape).uniform_(-bound, bound, generator=named_generator(tensor.name, seed))
