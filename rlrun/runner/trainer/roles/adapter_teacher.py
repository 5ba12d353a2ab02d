"""A teacher that is the policy's frozen model with another adapter.

Its factors are in host memory, and replace the policy's while the teacher computes. They are enlarged to the
policy's rank with zeros, and multiplied so that the policy's scale gives the adapter's own product.
"""

from pathlib import Path

import torch

from rlrun.converters.families.adapter_folder import AdapterFolder
from rlrun.converters.families.stored_adapter import read_stored_adapter
from rlrun.models.adapters import LoraShape, adapter_tensors, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.runner.trainer.parameters.stored_layout import copy_part, to_parameter
from rlrun.runner.trainer.roles.learner import Learner
from rlrun.runner.trainer.roles.reference import Reference


class AdapterTeacher(Reference):
    """One rank's share of the teacher."""

    def __init__(self, learner: Learner, folder: Path, model: Architecture, lora: LoraShape) -> None:
        """Reads the adapter. Raises ValueError if the policy's adapters cannot hold it."""
        super().__init__(learner)
        parameters = self._parameters
        with EnlargedAdapter(folder, model, lora) as enlarged, parameters.swapped(self._weights):
            with torch.no_grad():
                for name, parameter in parameters.computing.items():
                    copy_part(parameter, enlarged.parameter(name))
            self._weights = parameters.host_copy()


class EnlargedAdapter(AdapterFolder):
    """A stored adapter as one of a larger rank, and of more matrices; a context manager."""

    def __init__(self, folder: Path, model: Architecture, lora: LoraShape) -> None:
        """Opens the folder. Raises ValueError if adapters of the shape `lora` cannot hold it."""
        stored = read_stored_adapter(folder)
        stored.check_fits_into(model, lora)
        matrices = stored.matrices(model)
        super().__init__(folder, matrices, stored.lora)
        self._ratio = stored.lora.scale / lora.scale
        self._shapes = {
            tensor.parameter: tensor.parameter_shape for tensor in adapter_tensors(adapters(model, lora))
        }
        self._stored = {tensor.parameter: tensor for tensor in adapter_tensors(matrices)}

    def parameter(self, name: str) -> torch.Tensor:
        """Returns a factor in float32, by the trainer's name and in its layout; zeros where it has none."""
        whole = torch.zeros(self._shapes[name])
        tensor: HfTensor | None = self._stored.get(name)
        if tensor is not None:
            factor = to_parameter(tensor, self.read(tensor.name))
            is_second = ".lora_B." in tensor.name
            whole[tuple(slice(size) for size in factor.shape)] = factor * self._ratio if is_second else factor
        return whole
