"""The teacher on one rank: another, frozen model in its own layout, or the policy's own model with another
adapter or other weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.converters.families.adapter_folder import AdapterFolder
from rlrun.converters.families.lora import MergedFolder
from rlrun.converters.families.model_folder import WeightFolder
from rlrun.converters.families.stored_adapter import read_stored_adapter
from rlrun.models.adapters import LoraShape, adapter_tensors, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.runner.contracts.carriers import MicroBatches, Output, TrainerSetup, TrainSequence
from rlrun.runner.planning.rank_layout import data_rank, is_data_rank_leader
from rlrun.runner.prompts.shared_vocabulary import known_tokens
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.top_tokens import Comparison
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.trainer.parameters.stored_layout import copy_part, to_parameter
from rlrun.runner.trainer.passes.forward import Sequences, response_outputs
from rlrun.runner.trainer.passes.packed_model import ModelSettings, PackedModel
from rlrun.runner.trainer.passes.routing_replay import without_experts
from rlrun.runner.trainer.process import build_mesh
from rlrun.runner.trainer.roles.learner import Learner
from rlrun.runner.trainer.roles.reference import Reference
from rlrun.runner.trainer.transfers import wait
from rlrun.specs.sections.auxiliary_models import auxiliary_layout
from rlrun.specs.sections.job import Spec


class Teacher:
    """One rank's share of a teacher that is another model."""

    def __init__(
        self, setup: TrainerSetup, spec: Spec, device: torch.device, comparison: Comparison | None = None
    ) -> None:
        """Builds the model and loads its weights. Raises ValueError if the teacher cannot be used.

        `comparison`: how the policy is compared with the teacher's distribution; None: it is not.
        """
        assert setup.teacher_folder is not None and spec.teacher is not None
        folder = Path(setup.teacher_folder)
        model = read_architecture(folder)
        self._vocabulary = model.vocab
        layout = auxiliary_layout(spec.teacher.parallel, setup.world_size)
        dims = build_mesh(layout, setup.world_size)
        dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
        options = DecoderOptions(
            parallel=layout,
            dtype=dtype,
            device=device,
            section="teacher",
            head_dtype=spec.trainer.head_dtype,
        )
        decoders = build_model(model, dims, options)
        for decoder in decoders:
            decoder.requires_grad_(False)
        with _weights(folder, model, spec.teacher.adapter) as weights:
            self._parameters = Parameters(decoders, model, trained=False)
            self._parameters.load(lambda tensor: weights.read(tensor.name))
        temperature, chunk = spec.rollout.temperature, spec.trainer.logits_chunk
        share = spec.trainer.share_prefixes
        if comparison is not None:
            tokens = model.vocab if spec.teacher.tokenizer == "own" else comparison.vocabulary
            comparison = replace(comparison, top_k=min(comparison.top_k, model.vocab), vocabulary=tokens)
        settings = ModelSettings(
            temperature, chunk, layout, device, dtype, share=share, comparison=comparison
        )
        self._model = PackedModel(decoders, model, dims, settings)
        self._data_rank = data_rank(setup.rank, layout)
        self._is_leader = is_data_rank_leader(setup.rank, layout)

    def log_probs(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """Returns `[R]` log-probs of this data rank's sequences by index, at the policy's temperature.

        Only the data-rank leader returns them.
        """
        return self.outputs(sequences, micro_batches, ["log_probs"])["log_probs"]

    def outputs(
        self, sequences: Sequences, micro_batches: MicroBatches, names: Sequence[Output]
    ) -> dict[Output, dict[int, NDArray[Any]]]:
        """As `log_probs`, of each name."""
        batches = micro_batches[self._data_rank]
        in_vocabulary = {i: self._in_vocabulary(sequences[i]) for batch in batches for i in batch}
        outputs = response_outputs(self._model, in_vocabulary, batches, names)
        return outputs if self._is_leader else {name: {} for name in names}

    def _in_vocabulary(self, sequence: TrainSequence) -> TrainSequence:
        """Returns the sequence with tokens that the teacher does not have replaced."""
        mask = sequence.sampling_mask
        if mask is not None:
            mask = replace(mask, ids=known_tokens(mask.ids, self._vocabulary))
        tokens = known_tokens(sequence.tokens, self._vocabulary)
        # experts are those of the policy
        return replace(sequence, tokens=tokens, sampling_mask=mask, experts=None)

    def release(self) -> list[torch.Tensor]:
        """Frees gathered layers; returns the tensors that remain, for the caller to park."""
        reshard(self._model.decoders)
        return self._parameters.held


def _weights(folder: Path, model: Architecture, adapter: str | None) -> WeightFolder:
    return WeightFolder(folder, model) if adapter is None else MergedFolder(folder, model, Path(adapter))


class AdapterTeacher(Reference):
    """A teacher that is the policy's frozen model with another adapter.

    Its factors are in host memory, and replace the policy's while the teacher computes. They are enlarged to
    the policy's rank with zeros, and multiplied so that the policy's scale gives the adapter's own product.
    """

    def __init__(self, learner: Learner, folder: Path, model: Architecture, lora: LoraShape) -> None:
        """Reads the adapter. Raises ValueError if the policy's adapters cannot hold it."""
        super().__init__(learner)
        parameters = self._parameters
        with EnlargedAdapter(folder, model, lora) as enlarged, parameters.swapped(self._weights):
            with torch.no_grad():
                for name, parameter in parameters.computing.items():
                    copy_part(parameter, enlarged.parameter(name))
            self._weights = parameters.host_copy()


class CurrentTeacher:
    """A teacher that is the policy, with the weights that it has now."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def outputs(
        self, sequences: Sequences, micro_batches: MicroBatches, names: Sequence[Output]
    ) -> dict[Output, dict[int, NDArray[Any]]]:
        """Returns `[R]` numbers of this data rank's sequences by index, of each name, on the data-rank
        leader.
        """
        return self._learner.current_outputs(without_experts(sequences), micro_batches, names)


class AverageTeacher(Reference):
    """A teacher that is the policy with an exponential moving average of its weights, in host memory."""

    def __init__(self, learner: Learner, rate: float, device: torch.device) -> None:
        """`rate`: how far `update` moves the average towards the policy."""
        super().__init__(learner)
        self._rate, self._device = rate, device

    def update(self) -> None:
        """Moves the average towards the policy's current weights: in float32, whatever the weights are."""
        current = self._parameters.host_copy()
        wait(self._device)
        for name, average in self._weights.items():
            moved = average.float().lerp_(current[name].float(), self._rate)
            average.copy_(moved)


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


AnyTeacher = Teacher | Reference | CurrentTeacher
"""Reference: the initial weights, their average with later ones, or another adapter."""
