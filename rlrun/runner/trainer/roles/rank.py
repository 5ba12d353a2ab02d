"""One rank of the trainer: what the driver calls, as plain blocking methods.

    sequences, steps -> packs -> log-probs -> the algorithm's loss -> gradients -> optimizer -> weights for
    the engines

Calls are collective: every rank gets each call, in the same order, with its own data rank's sequences.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.models.transformers_models import read_model
from rlrun.plugins.protocols import ActorCritic, Algorithm
from rlrun.plugins.registry import build
from rlrun.runner.contracts.carriers import (
    GroupAddress,
    MicroBatches,
    Readers,
    TrainerSetup,
    TrainStep,
    WeightBucket,
    WeightUpdate,
)
from rlrun.runner.trainer.checkpoints.background_save import BackgroundSave
from rlrun.runner.trainer.checkpoints.distributed import write_state
from rlrun.runner.trainer.checkpoints.exports import export_folder, make_writer
from rlrun.runner.trainer.cpu_ops.library import load as load_operators
from rlrun.runner.trainer.optim.offload import Parking
from rlrun.runner.trainer.parameters.starting_weights import starting_weights
from rlrun.runner.trainer.passes.forward import Sequences
from rlrun.runner.trainer.process import peak_memory, start_process, stop_process
from rlrun.runner.trainer.roles.critic import Critic
from rlrun.runner.trainer.roles.learner import Learner
from rlrun.runner.trainer.roles.reference import Reference
from rlrun.runner.trainer.roles.teacher import Teacher
from rlrun.specs.sections.job import Spec


class TrainerRank:
    """Holds one rank's share of the policy, its optimizer and, where needed, the reference policy."""

    def __init__(self, setup: TrainerSetup) -> None:
        """Join the other ranks, build the model and load its weights. ValueError where the model cannot be
        used.
        """
        self._setup = setup
        self._spec = spec = Spec.model_validate_json(setup.spec_json)
        self._algorithm: Algorithm = build("algorithms", spec.algorithm.type, spec.algorithm.params)
        self._model = model = read_model(Path(setup.model_folder), spec.model.implementation)
        self._device = device = start_process(setup, spec.deterministic)
        if device.type == "cpu":
            load_operators()  # compiling takes a minute: better now than in the first step
        self._learner = Learner(setup, spec, self._algorithm, model=model, device=device)
        self._parameters = self._learner.parameters
        self._reference = Reference(self._learner) if self._holds_reference else None
        self._teacher = Teacher(setup, spec, device) if self._holds_teacher else None
        self._critic = self._make_critic() if self._algorithm.needs.critic else None
        self._writer = make_writer(setup, spec, model, self._parameters, device)
        self._parking = Parking(device)
        self._saving = BackgroundSave()

    @property
    def _holds_reference(self) -> bool:
        """Not where engines serve it."""
        return self._algorithm.needs.reference and self._spec.reference.engine is None

    @property
    def _holds_teacher(self) -> bool:
        """Not where engines serve it."""
        return self._algorithm.needs.teacher and self._setup.teacher_folder is not None

    def _make_critic(self) -> Critic:
        """It starts from the weights that the policy starts from."""
        setup, spec, model = self._setup, self._spec, self._model
        with starting_weights(spec, Path(setup.model_folder), model) as read:
            algorithm = cast("ActorCritic", self._algorithm)
            return Critic(setup, spec, algorithm, model=model, device=self._device, read=read)

    def log_probs(
        self, sequences: Sequences, micro_batches: MicroBatches, reference: bool = False
    ) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs of this data rank's sequences by index, under the current weights or the
        reference's; from one rank of those that share the data, nothing from the others.

        `micro_batches` is that of a TrainStep, or of several (all_micro_batches).
        """
        if reference:
            assert self._reference is not None, "the algorithm's needs do not name the reference"
            return self._reference.log_probs(sequences, micro_batches)
        return self._learner.log_probs(sequences, micro_batches)

    def teacher_log_probs(
        self, sequences: Sequences, micro_batches: MicroBatches
    ) -> dict[int, NDArray[np.float32]]:
        """`[R]` log-probs under the teacher; micro-batches are for its layout."""
        assert self._teacher is not None, "the algorithm's needs do not name a teacher"
        return self._teacher.log_probs(sequences, micro_batches)

    def values(self, sequences: Sequences, micro_batches: MicroBatches) -> dict[int, NDArray[np.float32]]:
        """`[R + 1]` values by the critic; micro-batches are for its layout."""
        assert self._critic is not None, "the algorithm's needs do not name a critic"
        return self._critic.values(sequences, micro_batches)

    def train_critic(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Take the critic's optimizer steps; metrics of each, the same on every rank."""
        assert self._critic is not None, "the algorithm's needs do not name a critic"
        return self._critic.train(sequences, steps)

    def update_reference(self) -> None:
        """From now on the reference is what the policy is now."""
        assert self._reference is not None, "the algorithm's needs do not name the reference"
        self._reference.update()

    def train(self, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Take one optimizer step for each of `steps`; metrics of each, the same on every rank.

        `train/…` by SEMANTICS; `train/tokens` and `train/response_tokens` are counts over all ranks;
        `perf/*_time` are the seconds of the slowest rank. NonFiniteError names what was not finite
        (`trainer.non_finite = "stop"`); weights are untouched then.
        """
        return self._learner.train(sequences, steps)

    def offload(self) -> None:
        """Leave the accelerator's memory to others until `reload`: parameters and optimizer state of all
        models wait in host memory, gradients are forgotten.
        """
        held = self._learner.release()
        for companion in (self._teacher, self._critic):
            if companion is not None:
                held += companion.release()
        self._writer.release_buffers()
        self._parking.leave(held)

    def reload(self) -> None:
        """Take the accelerator's memory back; all is as it was before `offload`."""
        self._parking.come_back()

    def write_weights(self, version: int) -> WeightUpdate | None:
        """Put the weights where engines can read them, or announce them; rank 0 returns where."""
        return self._writer.write(version)

    def begin_weights(self, readers: Readers) -> GroupAddress | None:
        """Begin to hand over the announced weights; rank 0 returns where readers meet, if they do."""
        return self._writer.begin(readers)

    def next_bucket(self) -> WeightBucket | None:
        """The next bucket of them, from the ranks that hand it over."""
        return self._writer.next_bucket()

    def save(self, folder: str | Path) -> Digests:
        """Write parameters, optimizer, step and RNG into `folder`; OSError where the disk is full. Returns
        the checksums of the files that this rank wrote.
        """
        digests: Digests = {}
        self._hand_over(Path(folder), lambda part, state: digests.update(write_state(part, state)))
        return digests

    def begin_save(self, folder: str | Path) -> None:
        """As `save`, of the state as it is now, while training goes on. `saved` must return the digests
        before the next one.
        """
        self._hand_over(Path(folder), self._saving.stage)
        self._saving.begin()

    def saved(self) -> Digests | None:
        """Returns the checksums of this rank's files of the last `begin_save` when they are on disk, None
        before. OSError where the disk is full.
        """
        return self._saving.done()

    def _hand_over(self, folder: Path, take: Callable[[Path, dict[str, torch.Tensor]], None]) -> None:
        """Give all parts of the state to `take`, one after the other: they are only valid meanwhile."""
        take(folder, self._learner.state())
        if self._critic is not None:
            take(folder / "critic", self._critic.state())
        if self._reference is not None and self._spec.reference.update_interval:
            with self._reference.state() as state:
                take(folder / "reference", state)

    def load(self, folder: str | Path) -> None:
        """Go on from `save`, also on another layout. ValueError where the checkpoint is another model's."""
        folder = Path(folder)
        self._learner.load(folder)
        if self._critic is not None:
            self._critic.load(folder / "critic")
        if self._reference is not None and self._spec.reference.update_interval:
            self._reference.load(folder / "reference")

    def export_hf(self, folder: str | Path) -> None:
        """Write an HF folder with the current weights in the source's precision, its config and tokenizer."""
        export_folder(Path(folder), self._setup, self._model, self._parameters)

    def memory(self) -> dict[str, float]:
        """`peak_memory`: bytes."""
        return {"peak_memory": float(peak_memory(self._device))}

    def close(self) -> None:
        """Remove shared weights and leave the other ranks."""
        self._writer.close()
        stop_process()
