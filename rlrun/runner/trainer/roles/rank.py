"""One rank of the trainer: the methods that the driver calls, plain and blocking.

    sequences, steps -> packs -> log-probs -> the algorithm's loss -> gradients -> optimizer -> weights for
    the engines

Calls are collective: every rank gets each call, in the same order, with the sequences of its data rank.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray

from rlrun.converters.families.model_folder import WeightFolder
from rlrun.converters.folders.checksums import Digests, find_problems
from rlrun.plugins.protocols import ActorCritic, Algorithm
from rlrun.plugins.registry import build
from rlrun.runner.batches.columns import Columns, JoinedArrays, from_columns, join_arrays
from rlrun.runner.contracts.carriers import MicroBatches, Output, Role, TrainerSetup, TrainStep
from rlrun.runner.contracts.weight_updates import Readers, StreamMember, WeightBucket, WeightUpdate
from rlrun.runner.kernels.operators import load as load_operators
from rlrun.runner.kernels.operators import promise_order
from rlrun.runner.trainer.checkpoints.background_save import BackgroundSave
from rlrun.runner.trainer.checkpoints.distributed import write_state
from rlrun.runner.trainer.checkpoints.exports import export_folder, make_writer
from rlrun.runner.trainer.exchange_timeouts import ExchangeTimeouts
from rlrun.runner.trainer.gpu_support import check_support, use_flash_attention, use_server_kernels
from rlrun.runner.trainer.model.top_tokens import comparison_of
from rlrun.runner.trainer.optim.offload import Parking
from rlrun.runner.trainer.parameters.starting_weights import starting_weights
from rlrun.runner.trainer.process import start_process, stop_process
from rlrun.runner.trainer.profiling import StepProfiler
from rlrun.runner.trainer.roles.critic import Critic, starting_critic
from rlrun.runner.trainer.roles.learner import Learner
from rlrun.runner.trainer.roles.reference import Reference
from rlrun.runner.trainer.roles.teacher import (
    AdapterTeacher,
    AnyTeacher,
    AverageTeacher,
    CurrentTeacher,
    Teacher,
)
from rlrun.runner.trainer.transfers import wait
from rlrun.runner.weights.streams import StreamWriter
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.policy_model import read_policy
from rlrun.specs.derived.served_adapters import teacher_in_policy_layout, teacher_shares_policy
from rlrun.specs.sections.job import Spec

STATE_BYTES = 16
"""Bytes of a parameter in a checkpoint, at most: weights, two moments and a critic, in float32."""


class TrainerRank:
    """One rank's share of the policy and of the models beside it, with their optimizers.

    Each model is an attribute that is None if the job does not hold it. `compute` and `train` are how the
    driver reaches them.
    """

    def __init__(self, setup: TrainerSetup) -> None:
        """Joins the other ranks, builds the models and loads their weights. Raises ValueError if a model
        cannot be used.
        """
        self._setup = setup
        self._spec = spec = Spec.model_validate_json(setup.spec_json)
        self._algorithm: Algorithm = build("algorithms", spec.algorithm.type, spec.algorithm.params)
        self._architecture = read_policy(Path(setup.model_folder), spec, self._algorithm.needs)
        self._device = device = start_process(setup, spec.deterministic)
        if rounds_as_target(spec):
            use_server_kernels()
        elif spec.true_on_policy:
            promise_order()
        use_flash_attention(spec.trainer.flash_attention, device)
        check_support(spec.trainer.parallel, device)
        if device.type == "cpu":
            load_operators()  # compiling takes a minute: better now than in the first step
        self.policy = Learner(setup, spec, self._algorithm, model=self._architecture, device=device)
        self.reference = self._make_reference() if self._holds_reference else None
        self.teacher = self._make_teacher() if self._holds_teacher else None
        self.critic = self._make_critic() if self._algorithm.needs.critic else None
        self._parking = Parking(device)
        self._writer = make_writer(
            setup, spec, self._architecture, self.policy.parameters, device, present=self._parking.present
        )
        size = sum(prod(shape) for shape in self.policy.parameters.shapes.values())
        seconds = spec.fault_tolerance.collective_timeout
        self._timeouts = ExchangeTimeouts(seconds, size * STATE_BYTES)
        self._saving = BackgroundSave(self._timeouts.seconds("transfers"))

    @property
    def _holds_reference(self) -> bool:
        """False where engines serve the reference."""
        return self._algorithm.needs.reference and self._spec.reference.engine is None

    @property
    def _holds_teacher(self) -> bool:
        """False where engines serve the teacher."""
        has_weights = self._setup.teacher_folder is not None or teacher_in_policy_layout(self._spec)
        return self._algorithm.needs.teacher and has_weights

    def _make_teacher(self) -> AnyTeacher:
        spec = self._spec
        assert spec.teacher is not None
        match spec.teacher.weights:
            case "current":
                return CurrentTeacher(self.policy)
            case "initial":
                return Reference(self.policy)
            case "average":
                return AverageTeacher(self.policy, spec.teacher.update_rate, self._device)
        if not teacher_shares_policy(spec):
            comparison = comparison_of(spec, self._algorithm.needs, self._architecture.vocab)
            return Teacher(self._setup, spec, self._device, comparison)
        assert spec.teacher.adapter is not None and spec.trainer.lora is not None
        folder = Path(spec.teacher.adapter)
        return AdapterTeacher(self.policy, folder, self._architecture, spec.trainer.lora.shape)

    def _make_reference(self) -> Reference:
        """Returns the reference: the policy as it starts, or the model of `reference.path`."""
        setup, spec, model = self._setup, self._spec, self._architecture
        if setup.reference_folder is None:
            return Reference(self.policy)
        with WeightFolder(Path(setup.reference_folder), model) as weights:
            self.policy.parameters.load(lambda tensor: weights.read(tensor.name))
        reference = Reference(self.policy)
        wait(self._device)  # the copy is complete before the parameters change
        with starting_weights(spec, Path(setup.model_folder), model) as read:
            self.policy.parameters.load(read)
        return reference

    def _make_critic(self) -> Critic:
        """Returns a critic that starts from the same weights as the policy, or from `critic.path`."""
        setup, spec, model = self._setup, self._spec, self._architecture
        algorithm, own = cast("ActorCritic", self._algorithm), setup.critic_folder
        folder = None if own is None else Path(own)
        with starting_critic(spec, Path(setup.model_folder), folder, model) as read:
            return Critic(setup, spec, algorithm, model=model, device=self._device, read=read)

    def compute(
        self, role: Role, outputs: Sequence[Output], columns: Columns, micro_batches: MicroBatches
    ) -> dict[Output, JoinedArrays]:
        """Returns outputs of a model, `[R]` of each of this data rank's sequences. Values are `[R + 1]`, a
        teacher's most probable tokens `[R, k]`, and their log-probs `[R, k + 1]`.

        `micro_batches` is that of a TrainStep, or of several (all_micro_batches), packed for the model's
        layout. Of the ranks that share the data only the data-rank leader returns arrays.
        """
        self._timeouts.enter_pass(f"{' and '.join(outputs)} of the {role}")
        model, sequences = self._model(role), from_columns(columns)
        arrays: Mapping[Output, Mapping[int, NDArray[Any]]]
        if isinstance(model, Critic):
            arrays = {"values": model.values(sequences, micro_batches)}
        else:
            arrays = model.outputs(sequences, micro_batches, outputs)
        return {name: join_arrays(arrays[name]) for name in outputs}

    def train(self, role: Role, columns: Columns, steps: Sequence[TrainStep]) -> list[dict[str, float]]:
        """Takes one optimizer step for each of `steps`; returns their metrics, the same on every rank."""
        self._timeouts.enter_pass(f"training of the {role}")
        model = self._model(role)
        assert isinstance(model, Learner | Critic), f"the {role} is frozen"
        return model.train(from_columns(columns), steps)

    def _model(self, role: Role) -> Learner | Reference | AnyTeacher | Critic:
        models = {
            "policy": self.policy,
            "reference": self.reference,
            "teacher": self.teacher,
            "critic": self.critic,
        }
        model = models[role]
        assert model is not None, f"the algorithm does not need a {role}"
        return model

    def begin_profile(self) -> None:
        """Records what this rank computes, until `end_profile`."""
        self._profiler = StepProfiler()

    def end_profile(self, folder: Path) -> None:
        """Writes what was recorded into a folder."""
        self._profiler.write(folder, self._setup.rank)
        del self._profiler

    def update_reference(self) -> None:
        """Replaces the reference's weights by the policy's current ones."""
        assert self.reference is not None, "the algorithm does not need a reference"
        self.reference.update()

    def update_teacher(self) -> None:
        """Moves the teacher that is an average of the policy's weights towards the current ones."""
        assert isinstance(self.teacher, AverageTeacher), "only an average moves"
        self.teacher.update()

    def offload(self) -> None:
        """Moves parameters and optimizer state of all models to host memory until `reload`, and drops the
        gradients, so that engines can use the device's memory.
        """
        held = self.policy.release()
        for auxiliary in (self.teacher, self.critic):
            if isinstance(auxiliary, Teacher | Critic):  # else it is in host memory
                held += auxiliary.release()
        self._writer.release_buffers()
        self._parking.park(held)

    def reload(self) -> None:
        """Moves everything that `offload` moved back to the device."""
        self._parking.unpark()

    def write_weights(self, version: int) -> WeightUpdate | None:
        """Writes the policy's weights for the engines, or announces them; rank 0 returns where they are."""
        self._timeouts.enter("transfers")
        return self._writer.write(version)

    def begin_weights(self, readers: Readers) -> StreamMember:
        """Begins to hand over the announced weights; returns this rank's part in that."""
        self._timeouts.enter("transfers")
        return self._streaming_writer.begin(readers)

    def next_bucket(self) -> WeightBucket | None:
        """Returns the next bucket of weights; None on ranks that hand nothing over."""
        return self._streaming_writer.next_bucket()

    def abort_weights(self, reason: str) -> None:
        """Makes `next_bucket` stop waiting for engines; called from another thread."""
        self._streaming_writer.abort(reason)

    @property
    def _streaming_writer(self) -> StreamWriter:
        assert isinstance(self._writer, StreamWriter), "stored weights are not streamed"
        return self._writer

    def save(self, folder: str | Path) -> Digests:
        """Writes parameters, optimizer and step into `folder`; returns the checksums of the files that
        this rank wrote. Raises OSError if the disk is full.
        """
        digests: Digests = {}
        self._pass_state(Path(folder), lambda part, state: digests.update(write_state(part, state)))
        return digests

    def begin_save(self, folder: str | Path) -> None:
        """Copies the state and begins to write it in the background, while training continues. `saved` must
        have returned the checksums before the next call.
        """
        self._pass_state(Path(folder), self._saving.stage)
        self._saving.begin()

    def saved(self) -> Digests | None:
        """Returns the checksums of this rank's files of the last `begin_save` when they are on disk, None
        before. Raises OSError if the disk is full.
        """
        return self._saving.done()

    def _pass_state(self, folder: Path, take: Callable[[Path, dict[str, torch.Tensor]], None]) -> None:
        """Calls `take` with each model's folder and state, one after the other: a state is valid only during
        its call.
        """
        self._timeouts.enter("transfers")
        take(folder, self.policy.state())
        if self.critic is not None:
            take(folder / "critic", self.critic.state())
        if self.reference is not None and self._spec.reference.update_interval:
            with self.reference.state() as state:
                take(folder / "reference", state)
        if isinstance(self.teacher, AverageTeacher):
            with self.teacher.state() as state:
                take(folder / "teacher", state)

    def check_files(self, folder: Path, digests: Digests) -> dict[str, str]:
        """Returns a description of what is wrong for each file that differs from its checksum."""
        return find_problems(folder, digests)

    def load(self, folder: str | Path) -> None:
        """Loads what `save` wrote, also from another layout. Raises ValueError if it is of another model."""
        self._timeouts.enter("transfers")
        folder = Path(folder)
        self.policy.load(folder)
        if self.critic is not None:
            self.critic.load(folder / "critic")
        if self.reference is not None and self._spec.reference.update_interval:
            self.reference.load(folder / "reference")
        if isinstance(self.teacher, AverageTeacher):
            self.teacher.load(folder / "teacher")

    def load_start(self, folder: str | Path, optimizer: bool) -> None:
        """Loads the weights that another run's `save` wrote, and its optimizer's state if `optimizer`; counts
        of steps stay 0. The critic's weights are loaded if the other run had a critic.

        Raises ValueError if the other run trained another model.
        """
        self._timeouts.enter("transfers")
        folder = Path(folder)
        self.policy.load_start(folder, optimizer=optimizer)
        if self.critic is not None and (folder / "critic").is_dir():
            self.critic.load_start(folder / "critic", optimizer=optimizer)

    def export_hf(self, folder: str | Path) -> None:
        """Writes a Hugging Face folder: current weights in the source's precision, config and tokenizer. If
        adapters are trained, its folder `adapter` has them by themselves.
        """
        self._timeouts.enter("transfers")
        export_folder(Path(folder), self._setup, self._spec, self._architecture, self.policy.parameters)

    def close(self) -> None:
        """Removes shared memory and leaves the process group."""
        self._writer.close()
        stop_process()
