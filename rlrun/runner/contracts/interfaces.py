"""What the loop asks of its parts. Each is met by the real thing and by a fake in the tests.

PromptSource -> Engines -> Grader -> filters -> Algorithm -> Trainer -> Engines (weights)
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Group, Needs, Prompt, Sample
from rlrun.runner.contracts.carriers import (
    GenerateRequest,
    Generation,
    TrainSequence,
    WeightUpdate,
)
from rlrun.runner.contracts.pausable_deadlines import PausableDeadlines
from rlrun.runner.contracts.pending_requests import PendingRequests

Result = TypeVar("Result")


class Timed(Protocol):
    """Awaits a phase of a job's start and shows how long it took (rlrun.runner.records.console)."""

    async def __call__(self, phase: str, work: Awaitable[Result]) -> Result:
        """What `work` returns, or raises."""


class PromptSource(Protocol):
    """An endless, seeded sequence of prompts whose place can be saved (rlrun.runner.prompts.dataset)."""

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts."""

    def state(self) -> dict[str, Any]:
        """The place in the sequence, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""


class Engines(Protocol):
    """All rollout engines as one (rlrun.runner.engines.pool.pool.EnginePool)."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """The n samples of one request, on the engine with the least to do."""

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """All requests at once; which engine runs what together depends on nothing but their order."""

    async def abort(self, request: GenerateRequest) -> None:
        """End a running request; it answers with what it has."""

    async def abort_all(self) -> None:
        """End every running request; each answers with what it has."""

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serve new weights from the next forward pass on; the version all engines confirm."""


class WeightReceiver(Protocol):
    """As the loop sees engines: they take new weights."""

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serve new weights from now on; the version all engines confirm."""


class Grader(Protocol):
    """Scores samples in processes of its own (rlrun.runner.scoring.scorer.Scorer)."""

    async def score(self, samples: Sequence[Sample]) -> None:
        """Fill `reward`, `rewards` and, where a reward could not be had, `failure`."""


class Advantages(Protocol):
    """The half of an algorithm that runs on the driver."""

    @property
    def needs(self) -> Needs:
        """What the framework has to provide."""

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """One `[R]` array for each sample, in the order of `groups` and their samples."""

    def returns(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """What the critic is fitted to, in the same order; called only where `needs.critic` says so."""


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The policy as it can be asked: prompts in, scored samples out."""

    engines: Engines
    tokenizer: Chat
    grader: Grader
    seed: int
    """Of the run; every sample's own seed is hashed from it."""
    rollout: Any
    """The rollout plugin: a `Rollout` or a `GroupRollout`."""
    deterministic: bool
    """Ask in whole batches, so that answers do not depend on timing."""
    deadlines: PausableDeadlines = field(default_factory=PausableDeadlines)
    """The deadlines of what is asked of the engines."""
    pending: PendingRequests = field(default_factory=PendingRequests)
    """The requests that the engines have not answered."""
    record_mask: bool = False
    """Engines return what each trained token was drawn from."""


class Trainer(Protocol):
    """The weights and checkpoints of all trainer ranks (rlrun.runner.cluster.trainer_group.TrainerGroup).

    Their models are called through handles (rlrun.runner.batches.model_handle.ModelHandle).
    """

    async def update_reference(self) -> None:
        """From now on the reference is what the policy is now."""

    async def write_weights(self, version: int) -> WeightUpdate:
        """Put the current weights where the engines can read them."""

    async def save(self, folder: Path) -> Digests:
        """Write all training state into `folder`; the checksum of every file by its path."""

    async def begin_save(self, folder: Path) -> None:
        """Copy all training state, to be written into `folder` while training goes on."""

    async def saved(self) -> Digests:
        """Return when the last `begin_save` is on disk; the checksum of every file by its path."""

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        """What is wrong with each file of `folder` that is not as `digests` has it, by its path in there."""

    async def load(self, folder: Path) -> None:
        """Go on from training state written by `save`."""

    async def export_hf(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""

    def seconds_used(self) -> float:
        """Seconds the slowest rank worked in passes and updates since the last call."""


class FrozenModel(Protocol):
    """A reference or a teacher, wherever it runs.

    On the trainer's ranks (rlrun.runner.batches.model_handle.ModelHandle), or on engines
    (rlrun.runner.engines.pool.served_model.ServedModel).
    """

    async def log_probs(self, sequences: Sequence[TrainSequence]) -> list[NDArray[np.float32]]:
        """Returns `[R]` log-probs of each sequence's response."""
