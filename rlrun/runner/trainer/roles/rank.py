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
    Output,
    Readers,
    Role,
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
    """One rank's share of the policy and of the models beside it, with their optimizers.

    Each model is an attribute that is None where the job does not hold it. `compute` and `train` are how the
    driver reaches them.
    """

    def __init__(self, setup: TrainerSetup) -> None:
        """Joins the other ranks, builds the models and loads their weights. ValueError where a model cannot
        be used.
        """
        self._setup = setup
        self._spec = spec = Spec.model_validate_json(setup.spec_json)
        self._algorithm: Algorithm = build("algorithms", spec.algorithm.type, spec.algorithm.params)
        self._architecture = read_model(Path(setup.model_folder), spec.model.implementation)
        self._device = device = start_process(setup, spec.deterministic)
        if device.type == "cpu":
            load_operators()  # compiling takes a minute: better now than in the first step
        self.policy = Learner(setup, spec, self._algorithm, model=self._architecture, device=device)
        self.reference = Reference(self.policy) if self._holds_reference else None
        self.teacher = Teacher(setup, spec, device) if self._holds_teacher else None
        self.critic = self._make_critic() if self._algorithm.needs.critic else None
        self._writer = make_writer(setup, spec, self._architecture, self.policy.parameters, device)
        self._parking = Parking(device)
        self._saving = BackgroundSave()

    @property
    def _holds_reference(self) -> bool:
        """False where engines serve the reference."""
        return self._algorithm.needs.reference and self._spec.reference.engine is None

    @property
    def _holds_teacher(self) -> bool:
        """False where engines serve the teacher."""
        return self._algorithm.needs.teacher and self._setup.teacher_folder is not None

    def _make_critic(self) -> Critic:
        """Returns a critic that starts from the same weights as the policy."""
        setup, spec, model = self._setup, self._spec, self._architecture
        with starting_weights(spec, Path(setup.model_folder), model) as read:
            algorithm = cast("ActorCritic", self._algorithm)
            return Critic(setup, spec, algorithm, model=model, device=self._device, read=read)

    def compute(
        self, role: Role, output: Output, sequences: Sequences, micro_batches: MicroBatches
    ) -> dict[int, NDArray[np.float32]]:
        """Returns a model's log-probs `[R]` or values `[R + 1]` of this data rank's sequences, by index.

        `micro_batches` is that of a TrainStep, or of several (all_micro_batches), packed for the model's
        layout. Of the ranks that share the data only the data-rank leader returns arrays.
        """
        model = self._model(role)
        if output == "values":
            assert isinstance(model, Critic), f"{role} has no value head"
            return model.values(sequences, micro_batches)
        assert not isinstance(model, Critic), "a critic has no log-probs"
        return model.log_probs(sequences, micro_batches)

    def train(self, role: Role, sequences: Sequences, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Takes one optimizer step for each of `steps`; returns their metrics, the same on every rank."""
        model = self._model(role)
        assert isinstance(model, Learner | Critic), f"the {role} is frozen"
        return model.train(sequences, steps)

    def _model(self, role: Role) -> Learner | Reference | Teacher | Critic:
        models = {
            "policy": self.policy,
            "reference": self.reference,
            "teacher": self.teacher,
            "critic": self.critic,
        }
        model = models[role]
        assert model is not None, f"the algorithm does not need a {role}"
        return model

    def update_reference(self) -> None:
        """Replaces the reference's weights by the policy's current ones."""
        assert self.reference is not None, "the algorithm does not need a reference"
        self.reference.update()

    def offload(self) -> None:
        """Leave the accelerator's memory to others until `reload`: parameters and optimizer state of all
        models wait in host memory, gradients are forgotten.
        """
        held = self.policy.release()
        for companion in (self.teacher, self.critic):
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
        take(folder, self.policy.state())
        if self.critic is not None:
            take(folder / "critic", self.critic.state())
        if self.reference is not None and self._spec.reference.update_interval:
            with self.reference.state() as state:
                take(folder / "reference", state)

    def load(self, folder: str | Path) -> None:
        """Go on from `save`, also on another layout. ValueError where the checkpoint is another model's."""
        folder = Path(folder)
        self.policy.load(folder)
        if self.critic is not None:
            self.critic.load(folder / "critic")
        if self.reference is not None and self._spec.reference.update_interval:
            self.reference.load(folder / "reference")

    def export_hf(self, folder: str | Path) -> None:
        """Write an HF folder with the current weights in the source's precision, its config and tokenizer."""
        export_folder(Path(folder), self._setup, self._architecture, self.policy.parameters)

    def memory(self) -> dict[str, float]:
        """`peak_memory`: bytes."""
        return {"peak_memory": float(peak_memory(self._device))}

    def close(self) -> None:
        """Remove shared weights and leave the other ranks."""
        self._writer.close()
        stop_process()
