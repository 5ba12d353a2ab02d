"""All trainer ranks as one trainer: each gets the sequences of its own data rank, and all get every call.

sequences ──▶ columns of data rank d ──▶ ranks of d ──▶ collective work ──▶ answers of the data-rank leaders
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.batches.columns import split_log_probs, to_columns
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import MicroBatches, Output, Role, TrainSequence, TrainStep
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.contracts.update_metrics import combine_ranks
from rlrun.runner.contracts.weight_updates import (
    GroupAddress,
    Readers,
    StreamMember,
    WeightBucket,
    WeightUpdate,
)
from rlrun.runner.engines.pool.delivery import WeightsMoved
from rlrun.runner.engines.pool.transfer import WeightStream
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause

PASS_SECONDS = 4 * 3600.0
"""Deadline of one pass over a step's sequences, or of writing or reading a checkpoint."""

_ABORT_SECONDS = 60.0
"""Deadline of a call that a rank answers also while it is busy."""

SAVE_POLL_SECONDS = 0.5
"""How long to wait before asking again whether a checkpoint is written; ranks answer between passes."""


class Rank(Protocol):
    """One trainer rank in a process of its own (rlrun.runner.cluster.trainer_actor.TrainerActor)."""

    def call(self, method: str, *args: Any, deadline: float) -> Awaitable[Any]:
        """Runs a method in the rank's process. ProcessFailure when the rank dies or raises."""

    def share(self, value: Any) -> Any:
        """Sends a large argument ahead once, so that the calls of several ranks can refer to it."""


class TrainerGroup:
    """The ranks of the trainer, seen from the driver."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
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
        output: Output,
        sequences: Sequence[TrainSequence],
        micro_batches: MicroBatches,
        *,
        data_ranks: Sequence[int],
    ) -> list[NDArray[np.float32]]:
        """Returns one model's log-probs or values, one array per sequence, in the order of `sequences`.

        `data_ranks` is the part of the data that each rank sees, for which `micro_batches` were packed.
        """
        shares = self._shares(sequences, micro_batches, data_ranks)
        answers = await self._timed("compute", [(role, output, share, micro_batches) for share in shares])
        arrays = {index: array for answer in answers for index, array in split_log_probs(*answer).items()}
        return [arrays[index] for index in range(len(arrays))]

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
        arguments = [(role, share, list(steps)) for share in shares]
        if role != "policy":  # engines never read the critic's weights
            return await self._metrics(arguments)
        async with self._policy_lock:
            self._written = -1
            return await self._metrics(arguments)

    async def _metrics(self, arguments: Sequence[tuple[Any, ...]]) -> list[dict[str, float]]:
        answers: list[list[dict[str, float]]] = await self._timed("train", arguments)
        return [combine_ranks(step) for step in zip(*answers, strict=True)]

    async def begin_profile(self) -> None:
        """Makes every rank record what it computes, until `end_profile`."""
        await self._broadcast("begin_profile")

    async def end_profile(self, folder: Path) -> None:
        """Writes what each rank recorded into `folder`."""
        await self._scatter("end_profile", [(str(folder), rank) for rank in range(len(self._ranks))])

    async def update_reference(self) -> None:
        """Replaces the reference's weights by the policy's current ones."""
        await self._broadcast("update_reference")

    async def write_weights(self, version: int) -> WeightUpdate:
        """Writes the policy's weights where the engines can read them, or announces them."""
        async with self._policy_lock:
            updates = await self._broadcast("write_weights", version)
            self._written = version
        [update] = [update for update in updates if update is not None]
        return update

    @asynccontextmanager
    async def hand_over(self, version: int, readers: Readers) -> AsyncIterator[list[WeightStream]]:
        """Hands over the announced weights bucket by bucket; the policy is not trained meanwhile.

        WeightsMoved where the ranks no longer have this version.
        """
        async with self._policy_lock:
            if version != self._written:
                raise WeightsMoved(f"the trainer no longer has weights {version}")
            yield self._streams(await self._broadcast("begin_weights", readers))

    def _streams(self, members: Sequence[StreamMember]) -> list[WeightStream]:
        """Returns the streams that the ranks are members of."""
        ranks: dict[int, list[Rank]] = {}
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

    async def _next_bucket(self, ranks: Sequence[Rank]) -> WeightBucket:
        calls = [rank.call("next_bucket", deadline=PASS_SECONDS) for rank in ranks]
        buckets = await gather_or_first_cause(calls)
        return WeightBucket.merge([bucket for bucket in buckets if bucket is not None])

    async def _abort_weights(self, sender: Rank, reason: str) -> None:
        """`sender`: the first rank of a stream, which is the only one that waits for engines."""
        await sender.call("abort_weights", reason, deadline=_ABORT_SECONDS)

    async def offload(self) -> None:
        """Moves all training state off the devices; until `reload` no other method may be called."""
        await self._broadcast("offload")

    async def reload(self) -> None:
        """Moves training state back to the devices; does nothing if it was not offloaded."""
        await self._broadcast("reload")

    async def save(self, folder: Path) -> Digests:
        """Writes all training state into `folder` and returns the checksums of all files.

        OSError when a rank could not write.
        """
        return _merge(await self._on_disk("save", folder))

    async def begin_save(self, folder: Path) -> None:
        """Copies all training state, which is then written into `folder` while training continues."""
        await self._on_disk("begin_save", folder)

    async def saved(self) -> Digests:
        """Waits until the last `begin_save` is on disk and returns the checksums of all files.

        OSError when a rank could not write.
        """
        digests: list[Digests] = []
        with self._os_errors():
            pending = list(self._ranks)
            while pending:
                calls = [rank.call("saved", deadline=PASS_SECONDS) for rank in pending]
                answers = await gather_or_first_cause(calls)
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
            return _merge(await self._scatter("check_files", [(str(folder), share) for share in shares]))

    async def load(self, folder: Path) -> None:
        """Loads training state that `save` wrote, also from another layout."""
        async with self._policy_lock:
            self._written = -1
            await self._on_disk("load", folder)

    async def export_hf(self, folder: Path) -> None:
        """Writes the policy as a Hugging Face folder. OSError when it could not be written."""
        await self._on_disk("export_hf", folder)

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
    ) -> list[Any]:
        """Returns each rank's sequences; those that several ranks see are sent ahead once."""
        shares = []
        for data_rank, batches in enumerate(micro_batches):
            columns = to_columns(sequences, sorted(index for batch in batches for index in batch))
            several = data_ranks.count(data_rank) > 1
            shares.append(self._ranks[0].share(columns) if several else columns)
        return [shares[data_rank] for data_rank in data_ranks]

    async def _timed(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method that also returns its seconds, and adds those of the slowest rank."""
        started = time.perf_counter()
        answers = await self._scatter(method, arguments)
        self._seconds += max(seconds for _, seconds in answers)
        self._spans += [
            Span(f"rank {rank}", f"{method} {role}", started, started + seconds)
            for rank, ((_, seconds), (role, *_)) in enumerate(zip(answers, arguments, strict=True))
        ]
        return [answer for answer, _ in answers]

    async def _on_disk(self, method: str, folder: Path) -> list[Any]:
        with self._os_errors():
            return await self._broadcast(method, str(folder))

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Turns a rank's failure that an OSError caused back into an OSError."""
        try:
            yield
        except ProcessFailure as failure:
            failure.raise_os_error()
            raise

    async def _broadcast(self, method: str, *args: Any) -> list[Any]:
        """Calls every rank with the same arguments."""
        return await self._scatter(method, [args] * len(self._ranks))

    async def _scatter(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls every rank with its own arguments. All ranks are called at once: the work is collective, so
        a rank that was called alone would wait for its peers.
        """
        calls = [
            rank.call(method, *own, deadline=PASS_SECONDS)
            for rank, own in zip(self._ranks, arguments, strict=True)
        ]
        return await gather_or_first_cause(calls)


def _merge(tables: Sequence[dict[str, str]]) -> dict[str, str]:
    """Returns the ranks' tables as one; no two ranks have the same file."""
    return {name: value for table in tables for name, value in table.items()}
