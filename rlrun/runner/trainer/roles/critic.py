"""The critic on one rank: the policy's architecture with a value head, in a layout of its own on all ranks.

sequences -> packs -> values;  steps -> the algorithm's value loss -> gradients -> its own optimizer
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor
from rlrun.plugins.protocols import ActorCritic
from rlrun.plugins.types import ValueInputs
from rlrun.runner.contracts.carriers import MicroBatches, TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.planning.rank_layout import data_rank, is_data_rank_leader
from rlrun.runner.trainer.checkpoints.distributed import load_checkpoint, training_state
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.value_head import HEAD, critic_tensors, value_head_config
from rlrun.runner.trainer.optim.optimizers import Optimizer
from rlrun.runner.trainer.optim.schedule import clip_gradients, learning_rate, non_finite_error
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.trainer.passes.forward import Sequences, response_values
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_batch import make_loss_batch
from rlrun.runner.trainer.passes.policy import Policy, PolicySettings
from rlrun.runner.trainer.process import build_mesh
from rlrun.specs.sections.companions import companion_layout
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ParallelSpec


class Critic:
    """Holds one rank's share of the critic and its optimizer."""

    def __init__(
        self,
        setup: TrainerSetup,
        spec: Spec,
        algorithm: ActorCritic,
        *,
        model: Architecture,
        device: torch.device,
        read: Callable[[HfTensor], torch.Tensor],
    ) -> None:
        """`read` gives the policy's tensors to begin with; the value head begins at 0."""
        model = replace(model, tied=False)
        layout = companion_layout(spec.critic.parallel, setup.world_size)
        if model.hidden % layout.tensor:
            raise ValueError(
                f"critic.parallel.tensor = {layout.tensor} does not divide hidden_size = {model.hidden}"
            )
        self._model = _policy(spec, model, layout, build_mesh(layout, setup.world_size), device)
        self._parameters = Parameters(
            self._model.decoders,
            model,
            tensors=critic_tensors(model),
            on_host=spec.trainer.offload == "all",
        )
        self._parameters.load(lambda tensor: _start(tensor, model, read))
        on_host = spec.trainer.offload == "optimizer"
        self._optimizer = Optimizer(spec.critic, self._parameters.masters, on_host=on_host)
        self._spec, self._stops = spec.critic, spec.trainer.non_finite == "stop"
        self._algorithm, self._device = algorithm, device
        self._rank, self._data_rank = setup.rank, data_rank(setup.rank, layout)
        self._speaks = is_data_rank_leader(setup.rank, layout)
        self._total, self._step = setup.optimizer_steps, 0

    def values(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """`[R + 1]` values of this data rank's sequences by index: before each token, and after the last.

        From one rank of those that share the data.
        """
        found = response_values(self._model, sequences, micro_batches[self._data_rank])
        return found if self._speaks else {}

    def train(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Take one optimizer step for each of `steps`; metrics of each, the same on every rank.

        NonFiniteError, the weights untouched, as for the policy.
        """
        return [self._train_step(sequences, step) for step in steps]

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, optimizer and step, for a checkpoint."""
        return training_state(self._parameters.masters, self._optimizer, self._step, self._rank)

    def load(self, folder: Path) -> None:
        """Go on from a written `state`, also on another layout."""
        self._step = load_checkpoint(folder, self._parameters.masters, self._optimizer, self._rank)
        self._parameters.refresh()

    def release(self) -> list[torch.Tensor]:
        """Give up what can be made again; what is left, for others to put elsewhere for a while."""
        self._optimizer.zero_grad()
        reshard(self._model.decoders)
        return [*self._parameters.held, *self._optimizer.held]

    def _train_step(self, sequences: Sequences, step: TrainStep) -> dict[str, float]:
        meter = Meter()
        self._optimizer.zero_grad()
        for members in step.micro_batches[self._data_rank]:
            self._accumulate([sequences[i] for i in members], [step.scale[i] for i in members], meter)
        rate = learning_rate(self._spec, self._step, self._total)
        norm = clip_gradients(self._parameters.masters, self._spec.max_grad_norm)
        metrics = meter.reduced(self._speaks, self._device)
        loss = metrics.pop("train/critic/loss")
        metrics |= {"train/critic/grad_norm": norm, "train/critic/lr": rate}
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self._optimizer.step(rate)
            self._parameters.refresh()
        elif self._stops:
            raise non_finite_error(self._step + 1, loss, self._parameters.masters, "critic")
        self._step += 1
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return metrics | {"train/critic/skipped_steps": float(not finite)}

    def _accumulate(self, sequences: Sequence[TrainSequence], scales: Sequence[float], meter: Meter) -> None:
        """Forward and backward of one micro-batch."""
        batch = make_loss_batch(sequences, scales, False, self._device)
        pack = self._model.pack(sequences)
        values, _ = self._model(pack)
        values = torch.cat([values[:0], *(part[:-1] for part in values.split(pack.response_lengths))])
        old, returns = (self._joined(sequences, name) for name in ("values", "returns"))
        outputs = self._algorithm.value_loss(ValueInputs(values, old, returns, batch.mask))
        loss = (outputs.loss * batch.weights).sum()
        self._model.backward(loss)
        found = {**outputs.metrics, "values": old, "returns": returns, "critic/loss": outputs.loss.detach()}
        meter.add({f"train/{name}": (value * batch.weights).sum() for name, value in found.items()})

    def _joined(self, sequences: Sequence[TrainSequence], name: str) -> torch.Tensor:
        arrays = [np.zeros(0, np.float32), *(getattr(sequence, name) for sequence in sequences)]
        return torch.from_numpy(np.concatenate(arrays, dtype=np.float32)).to(self._device)


def _policy(
    spec: Spec, model: Architecture, layout: ParallelSpec, dims: ParallelDims | None, device: torch.device
) -> Policy:
    """A decoder that gives values."""
    dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
    decoders = build_model(
        model,
        dims,
        layout,
        dtype,
        device,
        head=value_head_config(model),
        section="critic",
        checkpointing=spec.trainer.activation_checkpointing,
        on_host=spec.trainer.offload == "all",
        router_dtype=spec.trainer.moe.router_dtype,
        compiled=spec.trainer.compile,
    )
    return Policy(decoders, model, dims, PolicySettings(1.0, 1, layout, device, dtype, ends=True))


def _start(tensor: HfTensor, model: Architecture, read: Callable[[HfTensor], torch.Tensor]) -> torch.Tensor:
    return torch.zeros(1, model.hidden) if tensor.name == HEAD.name else read(tensor)
