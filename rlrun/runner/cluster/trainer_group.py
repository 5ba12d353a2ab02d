"""All trainer ranks as one trainer: each gets its own data rank's sequences, and all get every call.

sequences ──▶ columns of data rank d ──▶ ranks of d ──▶ collective work ──▶ the answers that count
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.batches.columns import split_log_probs, to_columns
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import (
    MicroBatches,
    Readers,
    TrainSequence,
    TrainStep,
    WeightBucket,
    WeightUpdate,
)
from rlrun.runner.engines.pool.delivery import Buckets, WeightsMoved
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause

PASS_SECONDS = 4 * 3600.0
"""Deadline of one pass over a step's sequences, or of writing or reading a checkpoint."""

ASK_AGAIN_SECONDS = 0.5
"""Between questions whether a checkpoint is written; ranks answer between passes."""


class Rank(Protocol):
    """One trainer rank in a process of its own (rlrun.runner.cluster.trainer_actor.TrainerActor)."""

    def call(self, method: str, *args: Any, deadline: float) -> Awaitable[Any]:
        """Run a method there. ProcessFailure when the rank dies or raises."""

    def share(self, value: Any) -> Any:
        """Send a large argument ahead once, for several ranks' calls."""


class TrainerGroup:
    """The trainer that the loop sees."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        data_ranks: Sequence[int],
        *,
        teacher: Sequence[int] | None = None,
        critic: Sequence[int] | None = None,
    ) -> None:
        """`data_ranks` says which part of the data each rank sees, `teacher` and `critic` in their layouts
        (None: each its own).
        """
        self._ranks = ranks
        self._data_ranks = data_ranks
        self._teacher_ranks = range(len(ranks)) if teacher is None else teacher
        self._critic_ranks = range(len(ranks)) if critic is None else critic
        self._seconds = 0.0
        self._written = -1
        """Version of the weights that the ranks have; -1: they were trained since they were written."""
        self._still = asyncio.Lock()
        """Held while weights change, and while they are handed over."""

    async def log_probs(
        self, sequences: Sequence[TrainSequence], micro_batches: MicroBatches, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """`[R]` log-probs of each sequence under the current weights, or the reference's."""
        shares = self._shares(sequences, micro_batches, self._data_ranks)
        return await self._pass("log_probs", [(share, micro_batches, reference) for share in shares])

    async def teacher_log_probs(
        self, sequences: Sequence[TrainSequence], micro_batches: MicroBatches
    ) -> list[NDArray[np.float32]]:
        """`[R]` log-probs of each sequence under the teacher; micro-batches are for its layout."""
        shares = self._shares(sequences, micro_batches, self._teacher_ranks)
        return await self._pass("teacher_log_probs", [(share, micro_batches) for share in shares])

    async def values(
        self, sequences: Sequence[TrainSequence], micro_batches: MicroBatches
    ) -> list[NDArray[np.float32]]:
        """`[R + 1]` values of each sequence by the critic: before each token, and after the last.

        Micro-batches are for its layout.
        """
        shares = self._shares(sequences, micro_batches, self._critic_ranks)
        return await self._pass("values", [(share, micro_batches) for share in shares])

    async def train(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep]
    ) -> list[dict[str, float]]:
        """Take the optimizer steps; the metrics of each, the same on every rank."""
        async with self._still:
            self._written = -1
            return await self._updates("train", sequences, steps, self._data_ranks)

    async def train_critic(
        self, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep]
    ) -> list[dict[str, float]]:
        """Take the critic's optimizer steps, packed for its layout; the metrics of each."""
        return await self._updates("train_critic", sequences, steps, self._critic_ranks)

    async def update_reference(self) -> None:
        """From now on the reference is what the policy is now."""
        await self._all("update_reference", [()] * len(self._ranks))

    async def write_weights(self, version: int) -> WeightUpdate:
        """Put the current weights where the engines can read them, or announce them."""
        async with self._still:
            manifests = await self._all("write_weights", [(version,)] * len(self._ranks))
            self._written = version
        [manifest] = [found for found in manifests if found is not None]
        return manifest

    @asynccontextmanager
    async def hand_over(self, version: int, readers: Readers) -> AsyncIterator[Buckets]:
        """The weights that were announced, bucket by bucket; they stay as they are meanwhile.

        WeightsMoved when the ranks have others by now.
        """
        async with self._still:
            if version != self._written:
                raise WeightsMoved(f"the trainer no longer has weights {version}")
            groups = await self._all("begin_weights", [(readers,)] * len(self._ranks))
            yield Buckets(next((one for one in groups if one is not None), None), self._next_bucket)

    async def _next_bucket(self) -> WeightBucket:
        buckets = await self._all("next_bucket", [()] * len(self._ranks))
        return WeightBucket.joined([found for found in buckets if found is not None])

    async def offload(self) -> None:
        """Leave the devices' memory to others; only `reload` may be called then."""
        await self._all("offload", [()] * len(self._ranks))

    async def reload(self) -> None:
        """Take the devices' memory back; nothing where it was never left."""
        await self._all("reload", [()] * len(self._ranks))

    async def save(self, folder: Path) -> Digests:
        """Write all training state into `folder`; the checksums of all files. OSError when a rank could not
        write.
        """
        return _joined(await self._on_disk("save", folder))

    async def begin_save(self, folder: Path) -> None:
        """Copy all training state, to be written into `folder` while training goes on."""
        await self._on_disk("begin_save", folder)

    async def saved(self) -> Digests:
        """Return when the last `begin_save` is on disk, the checksums of all files. OSError when a rank could
        not write.
        """
        digests: list[Digests] = []
        with self._os_errors():
            waiting = list(self._ranks)
            while waiting:
                calls = [rank.call("saved", deadline=PASS_SECONDS) for rank in waiting]
                written = await gather_or_first_cause(calls)
                digests += [found for found in written if found is not None]
                waiting = [rank for rank, found in zip(waiting, written, strict=True) if found is None]
                if waiting:
                    await asyncio.sleep(ASK_AGAIN_SECONDS)
        return _joined(digests)

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        """What is wrong with each file of a checkpoint that is not as it was written.

        The ranks share the files out, so that each is read once.
        """
        names, size = sorted(digests), len(self._ranks)
        shares = [{name: digests[name] for name in names[rank::size]} for rank in range(size)]
        with self._os_errors():
            return _joined(await self._all("check_files", [(str(folder), share) for share in shares]))

    async def load(self, folder: Path) -> None:
        """Go on from training state written by `save`."""
        async with self._still:
            self._written = -1
            await self._on_disk("load", folder)

    async def export_hf(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder. OSError when it could not be written."""
        await self._on_disk("export_hf", folder)

    def seconds_used(self) -> float:
        """Seconds the slowest rank worked in passes and updates since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def _pass(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[NDArray[np.float32]]:
        """One array a sequence, in order, from all ranks' answers."""
        answers = await self._timed(method, arguments)
        found = {index: values for answer in answers for index, values in split_log_probs(*answer).items()}
        return [found[index] for index in range(len(found))]

    async def _updates(
        self,
        method: str,
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep],
        data_ranks: Sequence[int],
    ) -> list[dict[str, float]]:
        shares = self._shares(sequences, all_micro_batches(steps), data_ranks)
        answers = await self._timed(method, [(share, list(steps)) for share in shares])
        metrics: list[dict[str, float]] = answers[0]
        return metrics

    def _shares(
        self, sequences: Sequence[TrainSequence], micro_batches: MicroBatches, data_ranks: Sequence[int]
    ) -> list[Any]:
        """Each rank's sequences; where several ranks see the same, they are sent ahead once."""
        shares = []
        for data_rank, batches in enumerate(micro_batches):
            columns = to_columns(sequences, sorted(index for batch in batches for index in batch))
            several = data_ranks.count(data_rank) > 1
            shares.append(self._ranks[0].share(columns) if several else columns)
        return [shares[data_rank] for data_rank in data_ranks]

    async def _timed(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers = await self._all(method, arguments)
        self._seconds += max(seconds for _, seconds in answers)
        return [answer for answer, _ in answers]

    async def _on_disk(self, method: str, folder: Path) -> list[Any]:
        with self._os_errors():
            return await self._all(method, [(str(folder),)] * len(self._ranks))

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        try:
            yield
        except ProcessFailure as failure:
            failure.raise_os_error()
            raise

    async def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = [
            rank.call(method, *own, deadline=PASS_SECONDS)
            for rank, own in zip(self._ranks, arguments, strict=True)
        ]
        return await gather_or_first_cause(calls)


def _joined(tables: Sequence[dict[str, str]]) -> dict[str, str]:
    """Returns the ranks' tables as one; no two ranks have the same file."""
    return {name: value for table in tables for name, value in table.items()}
