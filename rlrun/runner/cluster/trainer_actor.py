"""The body of a trainer rank's process."""

import time
from pathlib import Path
from typing import Any

from rlrun.converters.folders.checksums import Digests, problems
from rlrun.runner.batches.columns import Columns, from_columns, joined_log_probs
from rlrun.runner.cluster.actor import Actor, reports_failure
from rlrun.runner.contracts.carriers import (
    GroupAddress,
    MicroBatches,
    Readers,
    TrainerSetup,
    TrainStep,
    WeightBucket,
    WeightUpdate,
)


class TrainerActor(Actor):
    """One trainer rank."""

    pings_aside = True

    @reports_failure
    def start(self, setup: TrainerSetup) -> None:
        """Import torch, join the other ranks and load the model: seconds to minutes."""
        from rlrun.runner.trainer.roles.rank import TrainerRank

        self._rank = TrainerRank(setup)

    @reports_failure
    def log_probs(self, columns: Columns, micro_batches: MicroBatches, reference: bool) -> tuple[Any, float]:
        """Log-probs as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.log_probs(from_columns(columns), micro_batches, reference)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def teacher_log_probs(self, columns: Columns, micro_batches: MicroBatches) -> tuple[Any, float]:
        """The teacher's log-probs as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.teacher_log_probs(from_columns(columns), micro_batches)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def values(self, columns: Columns, micro_batches: MicroBatches) -> tuple[Any, float]:
        """The critic's values as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.values(from_columns(columns), micro_batches)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def train_critic(self, columns: Columns, steps: list[TrainStep]) -> tuple[list[dict[str, float]], float]:
        """Metrics of each of the critic's optimizer steps; seconds."""
        started = time.perf_counter()
        metrics = self._rank.train_critic(from_columns(columns), steps)
        return metrics, time.perf_counter() - started

    @reports_failure
    def update_reference(self) -> None:
        """The reference becomes the current policy."""
        self._rank.update_reference()

    @reports_failure
    def train(self, columns: Columns, steps: list[TrainStep]) -> tuple[list[dict[str, float]], float]:
        """Metrics of each optimizer step; seconds."""
        started = time.perf_counter()
        metrics = self._rank.train(from_columns(columns), steps)
        return metrics, time.perf_counter() - started

    @reports_failure
    def write_weights(self, version: int) -> WeightUpdate | None:
        """Rank 0 says where the weights are."""
        return self._rank.write_weights(version)

    @reports_failure
    def offload(self) -> None:
        """Leave the device's memory to others."""
        self._rank.offload()

    @reports_failure
    def reload(self) -> None:
        """Take it back."""
        self._rank.reload()

    @reports_failure
    def begin_weights(self, readers: Readers) -> GroupAddress | None:
        """Begin to hand over the weights; rank 0 says where the readers meet, if they do."""
        return self._rank.begin_weights(readers)

    @reports_failure
    def next_bucket(self) -> WeightBucket | None:
        """The next bucket of them, from the ranks that hand it over."""
        return self._rank.next_bucket()

    @reports_failure
    def save(self, folder: str) -> Digests:
        """Write this rank's part of a checkpoint; returns the checksums of its files."""
        return self._rank.save(folder)

    @reports_failure
    def begin_save(self, folder: str) -> None:
        """Copy this rank's part of a checkpoint, and begin to write it."""
        self._rank.begin_save(folder)

    @reports_failure
    def saved(self) -> Digests | None:
        """Returns the checksums of its files when they are written, None before."""
        return self._rank.saved()

    @reports_failure
    def check_files(self, folder: str, digests: Digests) -> dict[str, str]:
        """Returns what is wrong with each file of a checkpoint that is not as it was written."""
        return problems(Path(folder), digests)

    @reports_failure
    def load(self, folder: str) -> None:
        """Read this rank's part of a checkpoint."""
        self._rank.load(folder)

    @reports_failure
    def export_hf(self, folder: str) -> None:
        """Write the model as a Hugging Face folder, with the other ranks."""
        self._rank.export_hf(folder)

    @reports_failure
    def close(self) -> None:
        """Give back what outlives a process."""
        self._rank.close()
