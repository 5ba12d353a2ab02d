"""The policy on one rank: what it is asked, and the optimizer steps that it learns by.

sequences -> packs -> log-probs;  steps -> the algorithm's loss -> gradients -> optimizer
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.plugins.protocols import Algorithm
from rlrun.runner.contracts.carriers import MicroBatches, TrainerSetup, TrainStep
from rlrun.runner.planning.rank_layout import data_rank, is_data_rank_leader
from rlrun.runner.trainer.checkpoints.distributed import load_checkpoint, training_state
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.model.decoders import build_decoders
from rlrun.runner.trainer.model.expert_load import ExpertLoad
from rlrun.runner.trainer.optim.optimizers import Optimizer
from rlrun.runner.trainer.optim.schedule import clip_gradients, learning_rate, non_finite_error
from rlrun.runner.trainer.optim.tied_embeddings import TiedHead
from rlrun.runner.trainer.parameters.freezing import freeze
from rlrun.runner.trainer.parameters.parameters import EMBEDDING, Parameters
from rlrun.runner.trainer.parameters.starting_weights import starting_weights
from rlrun.runner.trainer.passes.forward import Sequences, response_values
from rlrun.runner.trainer.passes.loss_pass import LossPass
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.pipeline import make_policy
from rlrun.runner.trainer.passes.policy import PolicySettings
from rlrun.runner.trainer.passes.routing_replay import Replay
from rlrun.runner.trainer.process import build_mesh
from rlrun.specs.sections.job import Spec


class Learner:
    """Holds one rank's share of the policy and its optimizer."""

    def __init__(
        self,
        setup: TrainerSetup,
        spec: Spec,
        algorithm: Algorithm,
        *,
        model: Architecture,
        device: torch.device,
    ) -> None:
        """Build the model and load its weights. ValueError where the model cannot be used."""
        self._spec, self._rank, self._total = (
            spec.trainer,
            setup.rank,
            setup.optimizer_steps - setup.critic_only,
        )
        self._device = device
        parallel = spec.trainer.parallel
        self._data_rank, self._speaks = (
            data_rank(setup.rank, parallel),
            is_data_rank_leader(setup.rank, parallel),
        )
        dims = build_mesh(parallel, setup.world_size)
        dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
        folder = Path(setup.model_folder)
        decoders = build_decoders(spec, folder, model, dims=dims, dtype=dtype, device=device)
        temperature, chunk = spec.rollout.temperature, spec.trainer.logits_chunk
        settings = PolicySettings(temperature, chunk, parallel, device, dtype, routed=bool(model.experts))
        self.model = make_policy(decoders, model, dims, settings)
        self._stages = None if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_group()
        moe, on_host = spec.trainer.moe, spec.trainer.offload == "all"
        moved = None if moe.balancing == "off" else moe.balancing_export
        self.parameters = Parameters(decoders, model, stages=self._stages, on_host=on_host, biases=moved)
        self.tied = None
        if self._stages is not None and model.tied:
            self.tied = TiedHead(self.parameters, parallel, self._stages)
        with starting_weights(spec, folder, model) as read:
            self.parameters.load(read)
        self._loss = LossPass(self.model, algorithm, spec.trainer, device)
        trained = _trained(self.parameters, model, spec.trainer.freeze)
        self.optimizer = Optimizer(spec.trainer, trained, on_host=spec.trainer.offload == "optimizer")
        self._expert_load = None
        if model.experts:
            rate = None if moe.balancing == "off" else moe.balancing_rate
            self._expert_load = ExpertLoad(decoders, model, device, rate=rate, trained=trained)
        self._step = 0
        self._replay = Replay(moe.routing_replay)

    def log_probs(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs of this data rank's sequences by index, before training on them.

        From one rank of those that share the data.
        """
        mine, routes = micro_batches[self._data_rank], self._replay.routes
        sequences = self._replay.before_training(sequences)
        found = response_values(self.model, sequences, mine, routes)
        self._replay.keep(mine, routes)
        return found if self._speaks else {}

    def current_log_probs(
        self, sequences: Sequences, micro_batches: MicroBatches
    ) -> dict[int, NDArray[np.float32]]:
        """As `log_probs`, under whatever weights are there now; training takes nothing over from it."""
        found = response_values(self.model, sequences, micro_batches[self._data_rank])
        return found if self._speaks else {}

    def train(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Take one optimizer step for each of `steps`; metrics of each, the same on every rank.

        NonFiniteError names what was not finite (`trainer.non_finite = "stop"`); weights are untouched then.
        """
        sequences = self._replay.in_training(sequences)
        metrics = [self._train_step(sequences, step) for step in steps]
        self._replay.forget()
        return metrics

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, optimizer, step and random state, for a checkpoint."""
        return training_state(self.parameters.saved, self.optimizer, self._step, self._rank)

    def load(self, folder: Path) -> None:
        """Go on from a written `state`, also on another layout. ValueError where it is another model's."""
        self._step = load_checkpoint(folder, self.parameters.saved, self.optimizer, self._rank)
        if self.tied is not None:
            self.tied.copy_weights()
            self.tied.copy_state(self.optimizer)
        self.parameters.refresh()

    def release(self) -> list[torch.Tensor]:
        """Give up what can be made again; what is left, for others to put elsewhere for a while."""
        self.optimizer.zero_grad()
        reshard(self.model.decoders)
        return [*self.parameters.held, *self.optimizer.held]

    def _train_step(self, sequences: Sequences, step: TrainStep) -> dict[str, float]:
        meter = Meter()
        self.optimizer.zero_grad()
        if self._expert_load is not None:
            self._expert_load.reset()
        mine = step.micro_batches[self._data_rank]
        batches = [[sequences[i] for i in members] for members in mine]
        self._loss.accumulate(batches, [[step.scale[i] for i in members] for members in mine], meter)
        start = time.perf_counter()
        if self.tied is not None:
            self.tied.add_gradients()
        rate = learning_rate(self._spec, self._step, self._total)
        norm = clip_gradients(
            self.parameters.masters,
            self._spec.max_grad_norm,
            copies=self.parameters.copies,
            stages=self._stages,
        )
        metrics = meter.reduced(self._speaks, self._device, agree=self._stages is not None)
        metrics |= {"train/grad_norm": norm, "train/lr": rate}
        if self._expert_load is not None:
            metrics |= self._expert_load.metrics()
        skipped = not all(map(math.isfinite, (metrics["train/loss"], norm)))
        if skipped:
            self._refuse(metrics)
        if not skipped:
            self.optimizer.step(rate)
            self.parameters.refresh()
            if self._expert_load is not None:
                self._expert_load.balance()
        self._step += 1
        metrics["perf/optimizer_time"] = time.perf_counter() - start
        return metrics | {"train/skipped_steps": float(skipped)}

    def _refuse(self, metrics: dict[str, float]) -> None:
        """Leave a step with a non-finite loss or gradient out, or end the job, as the spec says."""
        if self._spec.non_finite == "stop":
            raise non_finite_error(self._step + 1, metrics["train/loss"], self.parameters.masters)
        for name in [name for name, value in metrics.items() if not math.isfinite(value)]:
            del metrics[name]


def _trained(
    parameters: Parameters, model: Architecture, patterns: Sequence[str]
) -> dict[str, torch.nn.Parameter]:
    """The parameters that are not frozen, by name."""
    frozen = freeze(hf_tensors(model), patterns, *parameters.holders)
    if EMBEDDING in frozen:
        frozen |= parameters.copies
        for name in parameters.copies:
            parameters.masters[name].requires_grad_(False)
    return {name: one for name, one in parameters.masters.items() if name not in frozen}
