"""All trainer ranks as one trainer: each gets the sequences of its own data rank, and all get every call.

sequences ──▶ columns of data rank d ──▶ ranks of d ──▶ collective work ──▶ answers of the data-rank leaders
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.batches.columns import Columns, JoinedArrays, split_arrays, to_columns
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.cluster.rank_calls import Answer, RemoteRank, run_on
from rlrun.runner.contracts.carriers import MicroBatches, Output, Role, TrainSequence, TrainStep
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.contracts.update_metrics import combine_ranks
from rlrun.runner.contracts.weight_updates import (
    GroupAddress,
    Readers,
    StreamedWeights,
    StreamMember,
    WeightBucket,
    WeightsMoved,
    WeightStream,
    WeightUpdate,
)
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause

if TYPE_CHECKING:
    from rlrun.runner.trainer.roles.rank import TrainerRank

PASS_SECONDS = 4 * 3600.0
"""Deadline of one pass over a step's sequences, or of writing or reading a checkpoint."""

_ABORT_SECONDS = 60.0
"""Deadline of a call that a rank answers also while it is busy."""

SAVE_POLL_SECONDS = 0.5
"""How long to wait before asking again whether a checkpoint is written; ranks answer between passes."""


Own = TypeVar("Own")


class TrainerGroup:
    """The ranks of the trainer, seen from the driver."""

    def __init__(self, ranks: Sequence[RemoteRank]) -> None:
        self._ranks = ranks
        self._seconds = 0.0
        self._spans: list[Span] = []
        self._written = -1
        """Version of the weights that were last written; -1 after the policy was trained or loaded."""
        self._policy_lock = asyncio.Lock()
        """Held while the policy's weights change, and while they are handed over to engines: a hand-over
        reads the live parameters bucket by bucket, so training meanwhile would mix two versions."""

    async def compute(
        self,
        role: Role,
        outputs: Sequence[Output],
        sequences: Sequence[TrainSequence],
        micro_batches: MicroBatches,
        *,
        data_ranks: Sequence[int],
    ) -> dict[Output, list[NDArray[np.float32]]]:
        """Returns outputs of one model, each with one array per sequence, in the order of `sequences`.

        `data_ranks` is the part of the data that each rank sees, for which `micro_batches` were packed.
        """
        shares = self._shares(sequences, micro_batches, data_ranks)
        answers = await self._timed(
            f"compute {role}",
            lambda rank, columns: rank.compute(role, list(outputs), columns, micro_batches),
            shares,
        )
        return {name: _in_order([answer[name] for answer in answers]) for name in outputs}

    async def train(
        self,
        role: Role,
        sequences: Sequence[TrainSequence],
        steps: Sequence[TrainStep],
        *,
        data_ranks: Sequence[int],
    ) -> list[dict[str, float]]:
        """Takes optimizer steps with the policy or the critic; returns the metrics of each step."""
        shares = self._shares(sequences, all_micro_batches(steps), data_ranks)
        async with nullcontext() if role != "policy" else self._policy_lock:
            if role == "policy":  # engines never read the critic's weights
                self._written = -1
            answers = await self._timed(
                f"train {role}", lambda rank, columns: rank.train(role, columns, list(steps)), shares
            )
        return [combine_ranks(step) for step in zip(*answers, strict=True)]

    async def begin_profile(self) -> None:
        """Makes every rank record what it computes, until `end_profile`."""
        await self._broadcast(lambda rank: rank.begin_profile())

    async def end_profile(self, folder: Path) -> None:
        """Writes what each rank recorded into `folder`."""
        await self._broadcast(lambda rank: rank.end_profile(folder))

    async def update_reference(self) -> None:
        """Replaces the reference's weights by the policy's current ones."""
        await self._broadcast(lambda rank: rank.update_reference())

    async def update_teacher(self) -> None:
        """Moves the teacher that is an average of the policy's weights towards the current ones."""
        await self._broadcast(lambda rank: rank.update_teacher())

    async def write_weights(self, version: int) -> WeightUpdate:
        """Writes the policy's weights where the engines can read them, or announces them."""
        async with self._policy_lock:
            updates = await self._broadcast(lambda rank: rank.write_weights(version))
            self._written = version
        [update] = [update for update in updates if update is not None]
        return replace(update, trainer=self) if isinstance(update, StreamedWeights) else update

    @asynccontextmanager
    async def hand_over(self, version: int, readers: Readers) -> AsyncIterator[list[WeightStream]]:
        """Hands over the announced weights bucket by bucket; the policy is not trained meanwhile.

        WeightsMoved where the ranks no longer have this version.
        """
        async with self._policy_lock:
            if version != self._written:
                raise WeightsMoved(f"the trainer no longer has weights {version}")
            yield self._streams(await self._broadcast(lambda rank: rank.begin_weights(readers)))

    def _streams(self, members: Sequence[StreamMember]) -> list[WeightStream]:
        """Returns the streams that the ranks are members of."""
        ranks: dict[int, list[RemoteRank]] = {}
        groups: dict[int, GroupAddress] = {}
        for rank, member in zip(self._ranks, members, strict=True):
            ranks.setdefault(member.stream, []).append(rank)
            if member.group is not None:
                groups[member.stream] = member.group
        return [
            WeightStream(
                groups.get(stream), partial(self._next_bucket, own), partial(self._abort_weights, own[0])
            )
            for stream, own in ranks.items()
        ]

    async def _next_bucket(self, ranks: Sequence[RemoteRank]) -> WeightBucket:
        calls = [run_on(rank, lambda rank: rank.next_bucket(), PASS_SECONDS) for rank in ranks]
        buckets = await gather_or_first_cause(calls)
        return WeightBucket.merge([bucket for bucket, _ in buckets if bucket is not None])

    async def _abort_weights(self, sender: RemoteRank, reason: str) -> None:
        """`sender`: the first rank of a stream, which is the only one that waits for engines."""
        await run_on(sender, lambda rank: rank.abort_weights(reason), _ABORT_SECONDS)

    async def offload(self) -> None:
        """Moves all training state off the devices; until `reload` no other method may be called."""
        await self._broadcast(lambda rank: rank.offload())

    async def reload(self) -> None:
        """Moves training state back to the devices; does nothing if it was not offloaded."""
        await self._broadcast(lambda rank: rank.reload())

    async def save(self, folder: Path) -> Digests:
        """Writes all training state into `folder` and returns the checksums of all files.

        OSError when a rank could not write.
        """
        return _merge(await self._on_disk(lambda rank: rank.save(folder)))

    async def begin_save(self, folder: Path) -> None:
        """Copies all training state, which is then written into `folder` while training continues."""
        await self._on_disk(lambda rank: rank.begin_save(folder))

    async def saved(self) -> Digests:
        """Waits until the last `begin_save` is on disk and returns the checksums of all files.

        OSError when a rank could not write.
        """
        digests: list[Digests] = []
        with self._os_errors():
            pending = list(self._ranks)
            while pending:
                calls = [run_on(rank, lambda rank: rank.saved(), PASS_SECONDS) for rank in pending]
                answers = [answer for answer, _ in await gather_or_first_cause(calls)]
                digests += [answer for answer in answers if answer is not None]
                pending = [rank for rank, answer in zip(pending, answers, strict=True) if answer is None]
                if pending:
                    await asyncio.sleep(SAVE_POLL_SECONDS)
        return _merge(digests)

    async def check(self, folder: Path, digests: Digests) -> dict[str, str]:
        """Returns a description of what is wrong, by path, for each file that differs from its checksum.

        Each file is read once: the ranks divide the files among them.
        """
        names, size = sorted(digests), len(self._ranks)
        shares = [{name: digests[name] for name in names[rank::size]} for rank in range(size)]
        with self._os_errors():
            answers = await self._scatter(lambda rank, share: rank.check_files(folder, share), shares)
        return _merge([problems for problems, _ in answers])

    async def load(self, folder: Path) -> None:
        """Loads training state that `save` wrote, also from another layout."""
        async with self._policy_lock:
            self._written = -1
            await self._on_disk(lambda rank: rank.load(folder))

    async def load_start(self, folder: Path, *, optimizer: bool) -> None:
        """Begins a new run with the weights that another run's `save` wrote, and with its `optimizer`."""
        async with self._policy_lock:
            self._written = -1
            await self._on_disk(lambda rank: rank.load_start(folder, optimizer))

    async def export_hf(self, folder: Path) -> None:
        """Writes the policy as a Hugging Face folder. OSError when it could not be written."""
        await self._on_disk(lambda rank: rank.export_hf(folder))

    def seconds_used(self) -> float:
        """Returns the seconds that the slowest rank worked in passes and updates since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def take_spans(self) -> list[Span]:
        """Returns what each rank did since the last call; the time of the call itself is left out."""
        spans, self._spans = self._spans, []
        return spans

    def _shares(
        self, sequences: Sequence[TrainSequence], micro_batches: MicroBatches, data_ranks: Sequence[int]
    ) -> list[Columns]:
        """Returns each rank's sequences; those that several ranks see are sent ahead once."""
        shares = []
        for data_rank, batches in enumerate(micro_batches):
            columns = to_columns(sequences, sorted(index for batch in batches for index in batch))
            several = data_ranks.count(data_rank) > 1
            shares.append(self._ranks[0].share(columns) if several else columns)
        return [shares[data_rank] for data_rank in data_ranks]

    async def _timed(
        self, activity: str, call: "Callable[[TrainerRank, Own], Answer]", own: Sequence[Own]
    ) -> list[Answer]:
        """Calls every rank with its own argument, and adds the seconds of the slowest rank."""
        started = time.perf_counter()
        answers = await self._scatter(call, own)
        self._seconds += max(seconds for _, seconds in answers)
        self._spans += [
            Span(f"rank {rank}", activity, started, started + seconds)
            for rank, (_, seconds) in enumerate(answers)
        ]
        return [answer for answer, _ in answers]

    async def _on_disk(self, call: "Callable[[TrainerRank], Answer]") -> list[Answer]:
        with self._os_errors():
            return await self._broadcast(call)

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Turns a rank's failure that an OSError caused back into an OSError."""
        try:
            yield
        except ProcessFailure as failure:
            failure.raise_os_error()
            raise

    async def _broadcast(self, call: "Callable[[TrainerRank], Answer]") -> list[Answer]:
        """Calls every rank with the same arguments."""
        answers = await self._scatter(lambda rank, _: call(rank), self._ranks)
        return [answer for answer, _ in answers]

    async def _scatter(
        self, call: "Callable[[TrainerRank, Own], Answer]", own: Sequence[Own]
    ) -> list[tuple[Answer, float]]:
        """Calls every rank with its own argument; returns answers and seconds.

        All ranks are called at once: the work is collective, so a rank that was called alone would wait for
        its peers.
        """
        calls = [
            run_on(rank, partial(_with, call, argument), PASS_SECONDS)
            for rank, argument in zip(self._ranks, own, strict=True)
        ]
        return await gather_or_first_cause(calls)


def _with(call: "Callable[[TrainerRank, Own], Answer]", argument: Own, rank: "TrainerRank") -> Answer:
    return call(rank, argument)


def _in_order(joined: Sequence[JoinedArrays]) -> list[NDArray[np.float32]]:
    """Returns the arrays of all ranks in the order of their indices, which are 0, 1, …"""
    arrays = {index: array for own in joined for index, array in split_arrays(*own).items()}
    return [arrays[index] for index in range(len(arrays))]


def _merge(tables: Sequence[dict[str, str]]) -> dict[str, str]:
    """Returns the ranks' tables as one; no two ranks have the same file."""
    return {name: value for table in tables for name, value in table.items()}
