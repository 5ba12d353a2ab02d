"""One rank of the trainer: what the driver calls, as plain blocking methods.

    sequences, steps -> packs -> log-probs -> the algorithm's loss -> gradients -> optimizer -> weights for
    the engines

Calls are collective: every rank gets each call, in the same order, with its own data rank's sequences.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.converters.foreign import read_model
from rlrun.converters.hf_names import HfTensor, hf_tensors
from rlrun.converters.safetensors_folder import WeightFolder, random_tensor, write_folder
from rlrun.plugins.protocols import ActorCritic, Algorithm
from rlrun.plugins.registry import build
from rlrun.plugins.types import Needs
from rlrun.runner.batches.packing import MicroBatches
from rlrun.runner.carriers import (
    GroupAddress,
    TrainerSetup,
    TrainSequence,
    TrainStep,
    WeightBucket,
    WeightUpdate,
)
from rlrun.runner.trainer.checkpoint import (
    load_checkpoint,
    load_weights,
    training_state,
    weights_state,
    write_state,
)
from rlrun.runner.trainer.compat import ParallelDims, reshard
from rlrun.runner.trainer.critic import Critic
from rlrun.runner.trainer.expert_load import ExpertLoad
from rlrun.runner.trainer.forward import Sequences, response_values
from rlrun.runner.trainer.freezing import freeze
from rlrun.runner.trainer.layout import data_rank, speaks
from rlrun.runner.trainer.loss_pass import LossPass
from rlrun.runner.trainer.meter import Meter
from rlrun.runner.trainer.model import build_model
from rlrun.runner.trainer.offload import Parking
from rlrun.runner.trainer.optimizer import (
    clip_gradients,
    learning_rate,
    non_finite_error,
)
from rlrun.runner.trainer.optimizers import Optimizer
from rlrun.runner.trainer.parameters import EMBEDDING, Parameters
from rlrun.runner.trainer.pipeline import make_policy
from rlrun.runner.trainer.policy import PolicySettings
from rlrun.runner.trainer.process import build_mesh, peak_memory, start_process, stop_process
from rlrun.runner.trainer.replay import Replay, without_experts
from rlrun.runner.trainer.saving import BackgroundSave
from rlrun.runner.trainer.teacher import Teacher
from rlrun.runner.trainer.tied import TiedHead
from rlrun.runner.weights.writer import Source, WeightWriter
from rlrun.specs.job import Spec


class TrainerRank:
    """Holds one rank's share of the policy, its optimizer and, where needed, the reference policy."""

    def __init__(self, setup: TrainerSetup) -> None:
        """Join the other ranks, build the model and load its weights. ValueError where the model cannot be
        used.
        """
        self._setup = setup
        self._spec = spec = Spec.model_validate_json(setup.spec_json)
        self._data_rank = data_rank(setup.rank, spec.trainer.parallel)
        self._speaks = speaks(setup.rank, spec.trainer.parallel)
        self._algorithm: Algorithm = build("algorithms", spec.algorithm.type, spec.algorithm.params)
        self._folder = Path(setup.model_folder)
        self._model = read_model(self._folder, spec.model.implementation)
        self._device = start_process(setup, spec.deterministic)
        dims = build_mesh(spec.trainer.parallel, setup.world_size)
        dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
        parallel = spec.trainer.parallel
        decoders = self._build(dims, dtype)
        self._expert_load = ExpertLoad(decoders, self._model, self._device) if self._model.experts else None
        self._policy = make_policy(
            decoders,
            self._model,
            dims,
            PolicySettings(
                spec.rollout.temperature,
                spec.trainer.logits_chunk,
                parallel,
                self._device,
                dtype,
                replay=spec.trainer.moe.routing_replay != "off",
            ),
        )
        self._stages = None if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_group()
        self._parameters = Parameters(
            decoders, self._model, stages=self._stages, on_host=spec.trainer.offload == "all"
        )
        self._tied = None
        if self._stages is not None and self._model.tied:
            self._tied = TiedHead(self._parameters, parallel, self._stages)
        self._load_weights()
        self._reference = self._parameters.host_copy() if self._holds_reference else None
        self._loss = LossPass(self._policy, self._algorithm, spec.trainer, self._device)
        on_host = spec.trainer.offload == "optimizer"
        self._optimizer = Optimizer(spec.trainer, self._trainable(), on_host=on_host)
        self._teacher = Teacher(setup, spec, self._model, self._device) if self._holds_teacher else None
        self._critic = self._make_critic() if self._needs.critic else None
        self._step = 0
        self._writer = self._make_writer()
        self._parking = Parking(self._device)
        self._saving = BackgroundSave()
        self._replay = Replay(spec.trainer.moe.routing_replay)

    def _build(self, dims: ParallelDims | None, dtype: torch.dtype) -> list[Any]:
        """The policy's decoder, or its stages on this rank, with undefined parameters."""
        trainer = self._spec.trainer
        if self._spec.model.implementation == "transformers":
            from rlrun.runner.trainer.foreign import build_foreign

            kind = trainer.activation_checkpointing
            return [build_foreign(self._folder, self._model, dims, dtype, self._device, kind)]
        return build_model(
            self._model,
            dims,
            trainer.parallel,
            dtype,
            self._device,
            checkpointing=trainer.activation_checkpointing,
            on_host=trainer.offload == "all",
            router_dtype=trainer.moe.router_dtype,
            compiled=trainer.compile,
        )

    @property
    def _needs(self) -> Needs:
        return self._algorithm.needs

    @property
    def _holds_reference(self) -> bool:
        """Not where engines serve it."""
        return self._needs.reference and self._spec.reference.engine is None

    @property
    def _holds_teacher(self) -> bool:
        """Not where engines serve it."""
        return self._needs.teacher and self._setup.teacher_folder is not None

    def log_probs(
        self,
        sequences: Mapping[int, TrainSequence] | Sequence[TrainSequence],
        micro_batches: MicroBatches,
        reference: bool = False,
    ) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs of this data rank's sequences by index, under the current weights or the
        reference's; from one rank of those that share the data, nothing from the others.

        `micro_batches` is that of a TrainStep, or of several (all_micro_batches).
        """
        mine = micro_batches[self._data_rank]
        if reference:
            assert self._reference is not None, "the algorithm's needs do not name the reference"
            with self._parameters.swapped(self._reference):
                found = response_values(self._policy, without_experts(sequences), mine)
        else:
            routes = self._replay.routes
            sequences = self._replay.before_training(sequences)
            found = response_values(self._policy, sequences, mine, routes)
            self._replay.keep(mine, routes)
        return found if self._speaks else {}

    def teacher_log_probs(
        self, sequences: Sequences, micro_batches: MicroBatches
    ) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs under the teacher; micro-batches are for its layout."""
        assert self._teacher is not None, "the algorithm's needs do not name a teacher"
        return self._teacher.log_probs(sequences, micro_batches)

    def values(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """`[R]` values by the critic; micro-batches are for its layout."""
        assert self._critic is not None, "the algorithm's needs do not name a critic"
        return self._critic.values(sequences, micro_batches)

    def train_critic(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Take the critic's optimizer steps; metrics of each, the same on every rank."""
        assert self._critic is not None, "the algorithm's needs do not name a critic"
        return self._critic.train(sequences, steps)

    def update_reference(self) -> None:
        """From now on the reference is what the policy is now."""
        assert self._reference is not None, "the algorithm's needs do not name the reference"
        self._reference = self._parameters.host_copy()

    def train(
        self, sequences: Mapping[int, TrainSequence] | Sequence[TrainSequence], steps: Sequence[TrainStep]
    ) -> list[dict[str, float]]:
        """Take one optimizer step for each of `steps`; metrics of each, the same on every rank.

        `train/…` by SEMANTICS; `train/tokens` and `train/response_tokens` are counts over all ranks;
        `perf/*_time` are the seconds of the slowest rank. NonFiniteError names what was not finite
        (`trainer.non_finite = "stop"`); weights are untouched then.
        """
        sequences = self._replay.in_training(sequences)
        metrics = [self._train_step(sequences, step) for step in steps]
        self._replay.forget()
        return metrics

    def _train_step(
        self, sequences: Mapping[int, TrainSequence] | Sequence[TrainSequence], step: TrainStep
    ) -> dict[str, float]:
        meter = Meter()
        self._optimizer.zero_grad()
        if self._expert_load is not None:
            self._expert_load.reset()
        mine = step.micro_batches[self._data_rank]
        batches = [[sequences[i] for i in members] for members in mine]
        self._loss.accumulate(batches, [[step.scale[i] for i in members] for members in mine], meter)
        start = time.perf_counter()
        if self._tied is not None:
            self._tied.add_gradients()
        rate = learning_rate(self._spec.trainer, self._step, self._setup.optimizer_steps)
        norm = clip_gradients(
            self._parameters.masters,
            self._spec.trainer.max_grad_norm,
            copies=self._parameters.copies,
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
            self._optimizer.step(rate)
            self._parameters.refresh()
        self._step += 1
        metrics["perf/optimizer_time"] = time.perf_counter() - start
        return metrics | {"train/skipped_steps": float(skipped)}

    def _refuse(self, metrics: dict[str, float]) -> None:
        """Leave a step with a non-finite loss or gradient out, or end the job, as the spec says."""
        if self._spec.trainer.non_finite == "stop":
            raise non_finite_error(self._step + 1, metrics["train/loss"], self._parameters.masters)
        for name in [name for name, value in metrics.items() if not math.isfinite(value)]:
            del metrics[name]

    def offload(self) -> None:
        """Leave the accelerator's memory to others until `reload`: parameters and optimizer state of all
        models wait in host memory, gradients are forgotten.
        """
        self._optimizer.zero_grad()
        reshard(self._policy.decoders)
        held = [*self._parameters.held, *self._optimizer.held]
        for companion in (self._teacher, self._critic):
            if companion is not None:
                held += companion.release()
        self._parking.leave(held)

    def reload(self) -> None:
        """Take the accelerator's memory back; all is as it was before `offload`."""
        self._parking.come_back()

    def write_weights(self, version: int) -> WeightUpdate | None:
        """Put the weights where engines can read them, or announce them; rank 0 returns where."""
        return self._writer.write(version)

    def begin_weights(self, readers: int, members: str) -> GroupAddress | None:
        """Begin to hand over the announced weights; rank 0 returns where readers meet, if they do."""
        return self._writer.begin(readers, members)

    def next_bucket(self) -> WeightBucket | None:
        """The next bucket of them, from rank 0."""
        return self._writer.next_bucket()

    def save(self, folder: str | Path) -> None:
        """Write parameters, optimizer, step and RNG into `folder`; OSError where the disk is full."""
        self._hand_over(Path(folder), write_state)

    def begin_save(self, folder: str | Path) -> None:
        """As `save`, of the state as it is now, while training goes on. `saved` is to say yes before the next
        one.
        """
        self._hand_over(Path(folder), self._saving.stage)
        self._saving.begin()

    def saved(self) -> bool:
        """Whether this rank's part of the last `begin_save` is on disk; OSError where the disk is full."""
        return self._saving.done()

    def _hand_over(self, folder: Path, take: Callable[[Path, dict[str, torch.Tensor]], None]) -> None:
        """Give all parts of the state to `take`, one after the other: they are only valid meanwhile."""
        take(folder, training_state(self._parameters.own, self._optimizer, self._step, self._setup.rank))
        if self._critic is not None:
            take(folder / "critic", self._critic.state())
        if self._reference is not None and self._spec.reference.update_interval:
            with self._parameters.swapped(self._reference):
                take(folder / "reference", weights_state(self._parameters.computing))

    def load(self, folder: str | Path) -> None:
        """Go on from `save`, also on another layout. ValueError where the checkpoint is another model's."""
        self._step = load_checkpoint(Path(folder), self._parameters.own, self._optimizer, self._setup.rank)
        if self._tied is not None:
            self._tied.copy_weights()
            self._tied.copy_state(self._optimizer)
        self._parameters.refresh()
        if self._critic is not None:
            self._critic.load(Path(folder) / "critic")
        if self._reference is not None and self._spec.reference.update_interval:
            with self._parameters.swapped(self._reference):
                load_weights(Path(folder) / "reference", self._parameters.computing)
                if self._tied is not None:
                    self._tied.copy_weights()
                self._reference = self._parameters.host_copy()

    def export_hf(self, folder: str | Path) -> None:
        """Write an HF folder with the current weights in the source's precision, its config and tokenizer."""
        tensors = self._parameters.gather()
        if self._setup.rank == 0:
            dtype = getattr(torch, self._model.dtype)
            write_folder(Path(folder), self._folder, tensors, self._parameters.shapes, dtype)
        for _ in tensors:
            pass

    def memory(self) -> dict[str, float]:
        """`peak_memory`: bytes."""
        return {"peak_memory": float(peak_memory(self._device))}

    def close(self) -> None:
        """Remove shared weights and leave the other ranks."""
        self._writer.close()
        stop_process()

    def _make_writer(self) -> WeightWriter:
        setup = self._setup
        return WeightWriter(
            self._spec,
            Source(
                setup.rank,
                self._model,
                self._parameters.shapes,
                self._parameters.gather,
                self._device,
                setup.master_addr,
                job=f"{self._spec.name}-{setup.master_port}",
                folder=Path(setup.weights_folder),
                served=Path(self._spec.engine.model or self._folder),
            ),
        )

    def _make_critic(self) -> Critic:
        """It starts from the weights that the policy starts from."""
        with self._weights() as read:
            algorithm = cast("ActorCritic", self._algorithm)
            return Critic(
                self._setup, self._spec, algorithm, model=self._model, device=self._device, read=read
            )

    def _trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are not frozen, by name."""
        frozen = freeze(hf_tensors(self._model), self._spec.trainer.freeze, *self._parameters.holders)
        if EMBEDDING in frozen:
            frozen |= self._parameters.copies
            for name in self._parameters.copies:
                self._parameters.masters[name].requires_grad_(False)
        return {name: one for name, one in self._parameters.masters.items() if name not in frozen}

    def _load_weights(self) -> None:
        with self._weights() as read:
            self._parameters.load(read)

    @contextmanager
    def _weights(self) -> Iterator[Callable[[HfTensor], torch.Tensor]]:
        """Reads a tensor to begin with: from the model's folder, or drawn at random."""
        if self._spec.model.random_init:
            yield lambda tensor: random_tensor(tensor, self._model, self._spec.seed)
            return
        with WeightFolder(self._folder, self._model) as weights:
            yield lambda tensor: weights.read(tensor.name)
