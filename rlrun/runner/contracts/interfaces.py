"""The interfaces between the loop and its parts. Tests implement them with fakes.

prompts -> Engines -> Grader -> filters -> Algorithm -> Trainer -> Engines (weights)
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Sample
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Output, TrainSequence, TrainStep
from rlrun.runner.contracts.environment import Environment
from rlrun.runner.contracts.execution_limit import ExecutionLimit
from rlrun.runner.contracts.named_engines import NamedEngines
from rlrun.runner.contracts.pausable_deadlines import PausableDeadlines
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.contracts.weight_updates import WeightUpdate
from rlrun.specs.needs import Needs

Result = TypeVar("Result")


class Timed(Protocol):
    """Awaits a phase of a job's start and shows how long it took (rlrun.runner.records.console)."""

    async def __call__(self, phase: str, work: Awaitable[Result]) -> Result:
        """Returns the result of `work`, or raises its error."""


class WeightReceiver(Protocol):
    """The engines as the loop sees them: they receive new weights."""

    async def update_weights(self, update: WeightUpdate) -> int:
        """Serves new weights from now on; returns the version that all engines confirm."""


class Engines(WeightReceiver, Protocol):
    """All rollout engines as one (rlrun.runner.engines.pool.pool.EnginePool)."""

    @property
    def version(self) -> int | None:
        """Version of the weights that the engines were given last; None before the first update."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Returns the n samples of one request, from the engine with the fewest open requests."""

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """Sends all requests at once; their order alone decides which engine gets which of them."""

    async def abort(self, request: GenerateRequest) -> None:
        """Ends a running request, which returns the tokens it has so far."""

    async def abort_all(self) -> None:
        """Ends every running request; each returns the tokens it has so far."""


class Grader(Protocol):
    """Scores samples in separate processes (rlrun.runner.scoring.scorer.Scorer)."""

    async def score(self, samples: Sequence[Sample]) -> None:
        """Sets `reward` and `rewards` of each sample, or `failure` if a reward could not be computed."""


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Everything that turns prompts into scored samples of the policy."""

    engines: Engines
    tokenizer: Chat
    grader: Grader
    seed: int
    """The run's seed; every sample's seed is hashed from it."""
    rollout: Any
    """The rollout plugin: a `Rollout` or a `GroupRollout`."""
    deterministic: bool
    """Requests are sent in whole batches, so that answers do not depend on timing."""
    deadlines: PausableDeadlines = field(default_factory=PausableDeadlines)
    """The deadlines of the requests to the engines."""
    pending: PendingRequests = field(default_factory=PendingRequests)
    """The requests that the engines have not answered."""
    limit: ExecutionLimit = field(default_factory=ExecutionLimit)
    """How many executions run at once."""
    environment: Environment = field(default_factory=Environment)
    """How the executions end, and how often they run again."""
    needs: Needs = field(default_factory=Needs)
    """What the algorithm needs of the groups of training."""
    named_engines: NamedEngines = field(default_factory=NamedEngines)
    """The models of `[[engines]]`, which rollout plugins may ask."""


class TrainingState(Protocol):
    """The state of all trainer ranks, for checkpoints (rlrun.runner.cluster.trainer_group.TrainerGroup)."""

    async def save(self, folder: Path) -> Digests:
        """Writes all training state into `folder`; returns the checksum of every file by its path."""

    async def begin_save(self, folder: Path) -> None:
        """Copies all training state, which is then written into `folder` while training continues."""

    async def saved(self) -> Digests:
        """Waits until the last `begin_save` is on disk; returns the checksum of every file by its path."""

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        """Returns the problem of every file that does not match `digests`, by its path in `folder`."""

    async def load(self, folder: Path) -> None:
        """Continues from training state that `save` wrote."""

    async def load_start(self, folder: Path, *, optimizer: bool) -> None:
        """Begins a new run with the weights that another run's `save` wrote, and with its `optimizer`."""


class FrozenModel(Protocol):
    """A reference or a teacher, wherever it runs.

    On the trainer's ranks (rlrun.runner.batches.model_handle.ModelHandle), or on engines
    (rlrun.runner.engines.pool.served_model.ServedModel).
    """

    async def log_probs(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep] | None = None
    ) -> list[NDArray[np.float32]]:
        """Returns `[R]` log-probs of each sequence's response.

        `steps`: the sequences as they are packed for the model's layout already. None: the model packs them.
        Engines batch for themselves.
        """

    async def outputs(
        self,
        names: Sequence[Output],
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep] | None = None,
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns several outputs from a single pass; a teacher also has its most probable tokens."""
