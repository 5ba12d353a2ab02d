"""The policy on one rank: its log-probs, and the optimizer steps that train it.

sequences -> packs -> log-probs;  steps -> the algorithm's loss -> gradients -> optimizer
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture
from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.types import PolicyPart
from rlrun.runner.contracts.carriers import MicroBatches, Output, TrainerSetup, TrainStep
from rlrun.runner.contracts.hooks import RANK, hooks_of
from rlrun.runner.contracts.seeds import update_seed
from rlrun.runner.planning.rank_layout import data_rank, is_data_rank_leader
from rlrun.runner.trainer.checkpoints.distributed import load_checkpoint, training_state
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.model.expert_load import ExpertLoad
from rlrun.runner.trainer.model.top_tokens import comparison_of
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.optim.tied_embeddings import TiedHead
from rlrun.runner.trainer.optim.updates import MTP_NORM, Updates, finite_metrics
from rlrun.runner.trainer.parameters.starting_weights import starting_weights
from rlrun.runner.trainer.passes.forward import Sequences, response_outputs
from rlrun.runner.trainer.passes.loss_pass import LossPass
from rlrun.runner.trainer.passes.meter import Meter, read
from rlrun.runner.trainer.passes.pipeline import make_packed_model
from rlrun.runner.trainer.passes.routing_replay import Replay
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.process import build_mesh, seed_generators
from rlrun.runner.trainer.roles.policy_parts import (
    build_decoders,
    model_settings,
    policy_parameters,
    records_experts,
    trained_parameters,
)
from rlrun.runner.trainer.transfers import wait
from rlrun.specs.derived.policy_model import frozen_patterns
from rlrun.specs.sections.job import Spec


class Learner:
    """One rank's share of the policy and its optimizer."""

    def __init__(
        self,
        setup: TrainerSetup,
        spec: Spec,
        algorithm: Algorithm,
        *,
        model: Architecture,
        device: torch.device,
    ) -> None:
        """Builds the model and loads its weights. Raises ValueError if the model cannot be used."""
        self._seed, self._device = spec.seed, device
        self._lora = spec.trainer.lora_shape
        parallel, moe = spec.trainer.parallel, spec.trainer.moe
        self._data_rank = data_rank(setup.rank, parallel)
        self._is_leader = is_data_rank_leader(setup.rank, parallel)
        dims = build_mesh(parallel, setup.world_size)
        dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
        folder = Path(setup.model_folder)
        decoders = build_decoders(spec, folder, model, dims=dims, dtype=dtype, device=device)
        comparison = comparison_of(spec, algorithm.needs, model.vocab)
        settings = model_settings(spec, model, dtype, device, comparison)
        self.model = make_packed_model(decoders, model, dims, settings)
        self._stages = None if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_group()
        self.parameters = policy_parameters(spec, decoders, model, self._stages)
        self.tied = None
        if self._stages is not None and model.tied:
            self.tied = TiedHead(self.parameters, parallel, self._stages)
        with starting_weights(spec, folder, model) as read:
            self.parameters.load(read)
        self._hooks = hooks_of(spec, RANK)
        self._loss = LossPass(self.model, algorithm, spec.trainer, device, self._hooks)
        trained = trained_parameters(self.parameters, model, frozen_patterns(spec.trainer, model))
        self.optimizer = Optimizer(spec.trainer, trained, on_host=spec.trainer.offload == "optimizer")
        self._saves_optimizer = spec.checkpoint.optimizer
        self._resets_optimizer = spec.trainer.reset_optimizer == "rollout"
        self._updates = Updates(
            spec.trainer,
            self.parameters,
            self.optimizer,
            total=setup.optimizer_steps - setup.critic_only,
            section="trainer",
            stops=spec.trainer.non_finite == "stop",
            stages=self._stages,
        )
        self._expert_load = None
        if records_experts(model):
            rate = None if moe.balancing == "off" else moe.balancing_rate
            self._expert_load = ExpertLoad(decoders, model, device, rate=rate, trained=trained)
        self._replay = Replay(moe.routing_replay)
        precision = spec.trainer.low_precision
        is_emulated = device.type == "cpu" and precision is not None and precision.emulated_on_cpu
        self._facts = {"perf/precision_emulated": 1.0} if is_emulated else {}
        self._rank, self._decoders, self._trained = setup.rank, decoders, trained
        self._hooks.on_model(self._part)

    @property
    def _part(self) -> PolicyPart:
        optimizers = self.optimizer.optimizers
        return PolicyPart(self._decoders, self._trained, optimizers, self._rank, self._updates.count)

    def log_probs(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """Returns `[R]` log-probs of this data rank's sequences by index, as `outputs`."""
        return self.outputs(sequences, micro_batches, ["log_probs"])["log_probs"]

    def outputs(
        self, sequences: Sequences, micro_batches: MicroBatches, names: Sequence[Output]
    ) -> dict[Output, dict[int, NDArray[Any]]]:
        """Returns `[R]` numbers of this data rank's sequences by index, of each name, before training on
        them.

        Only the data-rank leader returns them. Where routing is replayed, the experts chosen here are kept
        for the updates that follow.
        """
        batches, routes = micro_batches[self._data_rank], self._replay.routes
        sequences = self._replay.before_training(sequences)
        outputs = response_outputs(self.model, sequences, batches, names, routes)
        self._replay.keep(batches, routes)
        return outputs if self._is_leader else {name: {} for name in names}

    def current_outputs(
        self, sequences: Sequences, micro_batches: MicroBatches, names: Sequence[Output]
    ) -> dict[Output, dict[int, NDArray[Any]]]:
        """As `outputs`, under the weights that are loaded now (the reference's, perhaps), and without keeping
        the experts that were chosen.
        """
        outputs = response_outputs(self.model, sequences, micro_batches[self._data_rank], names)
        return outputs if self._is_leader else {name: {} for name in names}

    def train(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Takes one optimizer step for each of `steps`; returns the metrics of each.

        Names are those of docs/metrics.md. `train/*` are the same on every rank, and count over all ranks;
        `perf/*_time` are the seconds of this rank. NonFiniteError names the loss or the gradients that
        are not finite (`trainer.non_finite = "stop"`); the weights are untouched then.
        """
        if self._resets_optimizer:
            self.optimizer.reset()
        sequences = self._replay.in_training(sequences)
        meters = [Meter() for _ in steps]
        stopwatches = [Stopwatch(self._device) for _ in steps]
        metrics = [
            self._train_step(sequences, step, meter, stopwatch)
            for step, meter, stopwatch in zip(steps, meters, stopwatches, strict=True)
        ]
        self._replay.forget()
        wait(self._device)
        metrics = [
            values | self._facts | stopwatch.seconds()
            for values, stopwatch in zip(metrics, stopwatches, strict=True)
        ]
        for meter, values in zip(meters, metrics, strict=True):
            meter.check_declared(values)
        return metrics

    def state(self) -> dict[str, torch.Tensor]:
        """Returns parameters, optimizer (with `checkpoint.optimizer`) and step, for a checkpoint."""
        return training_state(
            self.parameters.saved,
            self.optimizer if self._saves_optimizer else None,
            self._updates.count,
            lora=self._lora,
            int4_group=self.parameters.int4_group,
        )

    def load(self, folder: Path) -> None:
        """Loads a written `state`, also from another layout. Raises ValueError if it is of another model."""
        self._updates.count = self._load(folder, optimizer=True, may_lack_optimizer=True)

    def load_start(self, folder: Path, *, optimizer: bool) -> None:
        """Loads the weights of a written `state`, and its optimizer's state if `optimizer`, but not its count
        of steps. Raises ValueError if it is of another model.
        """
        self._load(folder, optimizer=optimizer)

    def _load(self, folder: Path, *, optimizer: bool, may_lack_optimizer: bool = False) -> int:
        step = load_checkpoint(
            folder,
            self.parameters.saved,
            self.optimizer if optimizer else None,
            lora=self._lora,
            int4_group=self.parameters.int4_group,
            may_lack_optimizer=may_lack_optimizer,
        )
        if self.tied is not None:
            self.tied.copy_weights()
            if optimizer:
                self.tied.copy_state(self.optimizer)
        self.parameters.refresh()
        return step

    def release(self) -> list[torch.Tensor]:
        """Frees gradients and gathered layers; returns the tensors that remain, for the caller to park."""
        self.optimizer.zero_grad()
        reshard(self.model.decoders)
        return [*self.parameters.held, *self.optimizer.held]

    def _train_step(
        self, sequences: Sequences, step: TrainStep, meter: Meter, stopwatch: Stopwatch
    ) -> dict[str, float]:
        seed_generators(update_seed(self._seed, "policy", self._updates.count, self._data_rank))
        self.optimizer.zero_grad()
        if self._expert_load is not None:
            self._expert_load.reset()
        batches = step.micro_batches[self._data_rank]
        self._loss.accumulate(
            [[sequences[i] for i in batch] for batch in batches],
            [[step.scale[i] for i in batch] for batch in batches],
            step.values,
            meter,
            stopwatch,
            has_cross_entropy=step.has_cross_entropy,
        )
        with stopwatch.part("perf/optimizer_time"):
            return self._update(meter)

    def _update(self, meter: Meter) -> dict[str, float]:
        """Takes an optimizer step with the accumulated gradients; returns the metrics of the whole step."""
        if self.tied is not None:
            self.tied.add_gradients()
        if self._hooks.see_gradients:
            self.parameters.wait_for_gradients()
            self._hooks.before_update(self._part)
        values = meter.reduced(self._is_leader, self._device)
        if self._expert_load is not None:
            values |= self._expert_load.metrics()
        values["train/grad_norm"] = self._updates.gradient_norm()
        values |= self._updates.mtp_gradient_norm()
        metrics = read(values, self._device)
        norms = metrics["train/grad_norm"], metrics.get(MTP_NORM, 0.0)
        update = self._updates.apply(metrics["train/loss"], *norms)
        if update["skipped_steps"]:
            metrics = finite_metrics(metrics)
        elif self._expert_load is not None:
            self._expert_load.balance()
        return metrics | {f"train/{name}": value for name, value in update.items()}
