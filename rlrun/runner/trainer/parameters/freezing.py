"""Which parameters are trained: all but those that the spec's patterns name."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from rlrun.models.tensor_names import HfTensor


def freeze(
    tensors: Sequence[HfTensor],
    patterns: Sequence[str],
    *holders: Mapping[str, nn.Parameter],
) -> set[str]:
    """Turn gradients off in `holders` (parameters by torchtitan's name) for what the patterns name.

    Returns the names. `tensors` are those of the whole model, wherever they lie. ValueError for a pattern
    that fits nothing, some experts of a layer and not the rest, or everything.
    """
    for pattern in patterns:
        if not any(fnmatchcase(tensor.name, pattern) for tensor in tensors):
            raise ValueError(f'trainer.freeze: "{pattern}" fits no parameter, for instance {tensors[0].name}')
    verdicts: defaultdict[str, set[bool]] = defaultdict(set)
    for tensor in tensors:
        frozen = any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
        verdicts[tensor.parameter].add(frozen)
    if split := [name for name, found in verdicts.items() if len(found) > 1]:
        raise ValueError(f"trainer.freeze names some of the experts in {split[0]} and not the rest")
    names = {name for name, found in verdicts.items() if True in found}
    if names == verdicts.keys():
        raise ValueError("trainer.freeze names every parameter: nothing would be trained")
    for name in names:
        for parameters in holders:
            if name in parameters:
                parameters[name].requires_grad_(False)
    return names
