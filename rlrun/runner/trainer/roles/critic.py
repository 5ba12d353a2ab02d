"""The critic on one rank: the policy's architecture with a value head, in its own layout over all ranks.

sequences -> packs -> values;  steps -> the algorithm's value loss -> gradients -> the critic's optimizer
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture, scoring_model
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import SCORE
from rlrun.plugins.protocols import ActorCritic
from rlrun.plugins.types import ValueInputs
from rlrun.runner.contracts.carriers import MicroBatches, TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.contracts.seeds import update_seed
from rlrun.runner.planning.rank_layout import data_rank, is_data_rank_leader
from rlrun.runner.trainer.checkpoints.distributed import load_checkpoint, training_state
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.optim.updates import Updates, finite_metrics
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.trainer.parameters.starting_weights import Read, scoring_weights, starting_policy
from rlrun.runner.trainer.passes.forward import Sequences, response_values
from rlrun.runner.trainer.passes.meter import Meter, read
from rlrun.runner.trainer.passes.packed_batch import make_loss_batch
from rlrun.runner.trainer.passes.packed_model import ModelSettings, PackedModel
from rlrun.runner.trainer.process import build_mesh, seed_generators
from rlrun.runner.trainer.transfers import to_device
from rlrun.specs.sections.auxiliary_models import auxiliary_layout
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ParallelSpec


class Critic:
    """One rank's share of the critic and its optimizer."""

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
        """`read` returns the tensors that the critic starts from, the value head's too."""
        model = scoring_model(model)
        layout = auxiliary_layout(spec.critic.parallel, setup.world_size)
        if model.hidden % layout.tensor:
            raise ValueError(
                f"critic.parallel.tensor = {layout.tensor} does not divide hidden_size = {model.hidden}"
            )
        self._model = _packed_model(spec, model, layout, build_mesh(layout, setup.world_size), device)
        self._parameters = Parameters(
            self._model.decoders,
            model,
            on_host=spec.trainer.offload == "all",
        )
        self._parameters.load(read)
        on_host = spec.trainer.offload == "optimizer"
        self._optimizer = Optimizer(spec.critic, self._parameters.masters, on_host=on_host)
        self._saves_optimizer = spec.checkpoint.optimizer
        self._resets_optimizer = spec.critic.reset_optimizer == "rollout"
        self._updates = Updates(
            spec.critic,
            self._parameters,
            self._optimizer,
            total=setup.optimizer_steps,
            section="critic",
            stops=spec.trainer.non_finite == "stop",
        )
        self._algorithm, self._device = algorithm, device
        self._seed, self._data_rank = spec.seed, data_rank(setup.rank, layout)
        self._is_leader = is_data_rank_leader(setup.rank, layout)

    def values(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """Returns `[R + 1]` values of this data rank's sequences by index: before each response token, and
        after the last. Only the data-rank leader returns them.
        """
        values = response_values(self._model, sequences, micro_batches[self._data_rank], "values")
        return values if self._is_leader else {}

    def train(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Takes one optimizer step for each of `steps`; returns the metrics of each, the same on every rank.

        NonFiniteError as for the policy; the weights are untouched then.
        """
        if self._resets_optimizer:
            self._optimizer.reset()
        return [self._train_step(sequences, step) for step in steps]

    def state(self) -> dict[str, torch.Tensor]:
        """Returns parameters, optimizer (with `checkpoint.optimizer`) and step, for a checkpoint."""
        optimizer = self._optimizer if self._saves_optimizer else None
        return training_state(self._parameters.masters, optimizer, self._updates.count)

    def load(self, folder: Path) -> None:
        """Loads a written `state`, also from another layout."""
        masters = self._parameters.masters
        self._updates.count = load_checkpoint(folder, masters, self._optimizer, may_lack_optimizer=True)
        self._parameters.refresh()

    def load_start(self, folder: Path, *, optimizer: bool) -> None:
        """Loads the weights of a written `state`, and its optimizer's state if `optimizer`, but not its count
        of steps.
        """
        load_checkpoint(folder, self._parameters.masters, self._optimizer if optimizer else None)
        self._parameters.refresh()

    def release(self) -> list[torch.Tensor]:
        """Frees gradients and gathered layers; returns the tensors that remain, for the caller to park."""
        self._optimizer.zero_grad()
        reshard(self._model.decoders)
        return [*self._parameters.held, *self._optimizer.held]

    def _train_step(self, sequences: Sequences, step: TrainStep) -> dict[str, float]:
        meter = Meter()
        seed_generators(update_seed(self._seed, "critic", self._updates.count, self._data_rank))
        self._optimizer.zero_grad()
        for batch in step.micro_batches[self._data_rank]:
            self._accumulate([sequences[i] for i in batch], [step.scale[i] for i in batch], meter)
        values = meter.reduced(self._is_leader, self._device)
        values["train/critic/grad_norm"] = self._updates.gradient_norm()
        metrics = read(values, self._device)
        update = self._updates.apply(metrics.pop("train/critic/loss"), metrics["train/critic/grad_norm"])
        metrics |= {f"train/critic/{name}": value for name, value in update.items()}
        meter.check_declared(metrics)
        return finite_metrics(metrics)

    def _accumulate(self, sequences: Sequence[TrainSequence], scales: Sequence[float], meter: Meter) -> None:
        """Adds the gradients of one micro-batch to the parameters, and its metrics to `meter`."""
        batch = make_loss_batch(sequences, scales, False, self._device)
        pack = self._model.pack(sequences)
        values, _ = self._model(pack)
        # each response has R + 1 values, of which the loss takes the first R
        values = torch.cat(
            [values[:0], *(of_response[:-1] for of_response in values.split(pack.response_lengths))]
        )
        old, returns = (self._concatenate(sequences, name) for name in ("values", "returns"))
        outputs = self._algorithm.value_loss(ValueInputs(values, old, returns, batch.loss_mask))
        loss = (outputs.loss * batch.weights).sum()
        self._model.backward(loss)
        meter.add_token_means({**outputs.metrics, "values": old, "returns": returns}, batch.weights)
        meter.add({"train/critic/loss": loss.detach()})

    def _concatenate(self, sequences: Sequence[TrainSequence], name: str) -> torch.Tensor:
        """Returns one field of all sequences, end to end, on the device."""
        arrays = [np.zeros(0, np.float32), *(getattr(sequence, name) for sequence in sequences)]
        return to_device(np.concatenate(arrays, dtype=np.float32), self._device)


def _packed_model(
    spec: Spec, model: Architecture, layout: ParallelSpec, dims: ParallelDims | None, device: torch.device
) -> PackedModel:
    """Returns a decoder whose head computes values. Rounding to INT4 is for models that engines hold too."""
    precision = spec.trainer.low_precision
    if precision is not None and precision.rounds_weights_alone:
        precision = None
    dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
    options = DecoderOptions(
        parallel=layout,
        dtype=dtype,
        device=device,
        section="critic",
        checkpointing=spec.trainer.activation_checkpointing,
        on_host=spec.trainer.offload == "all",
        router_dtype=spec.trainer.moe.router_dtype,
        compiled=spec.trainer.compile,
        precision=precision,
    )
    decoders = build_model(model, dims, options)
    share = spec.trainer.share_prefixes
    settings = ModelSettings(1.0, 1, layout, device, dtype, precision=precision, share=share)
    return PackedModel(decoders, model, dims, settings)


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
