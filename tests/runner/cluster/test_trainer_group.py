"""Ranks that answer from memory: who gets what, and whose answer counts."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.batches.columns import Columns, from_columns, join_arrays
from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.carriers import Output, Role, TrainSequence, TrainStep
from rlrun.runner.contracts.weight_updates import (
    GroupAddress,
    Readers,
    StreamMember,
    TensorSlot,
    WeightBucket,
    WeightsMoved,
)
from rlrun.runner.host.failures import ProcessFailure
from rlrun.runner.weights.carriers.native.updates import WeightManifest

READERS = Readers((0, 1), (0, 0), 1)


class Rank:
    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: list[Columns] = []
        self.shared = 0
        self.asked = 0
        self.told: list[str] = []
        self.loaded = ""
        self.fails: ProcessFailure | None = None

    def share(self, value: Any) -> Any:
        self.shared += 1
        return value

    async def run(self, method: str, *args: Any, deadline: float) -> tuple[Any, float]:
        """Answers after a second for each number of a rank."""
        assert deadline > 0
        if self.fails:
            raise self.fails
        return getattr(self, method)(*args), 1.0 + self.number

    def compute(self, role: Role, outputs: list[Output], columns: Columns, micro_batches: Any) -> Any:
        """Arrays that tell the role; only the leader of two ranks that share their data answers."""
        self.seen.append(columns)
        self.told.append(f"{role} {' '.join(outputs)}")
        factor = {"policy": 1, "reference": 2, "teacher": 3, "critic": 4}[role]
        own = {index: factor * one.advantages for index, one in from_columns(columns).items()}
        return dict.fromkeys(outputs, join_arrays(own if self.number in (0, 2) else {}))

    def train(self, role: Role, columns: Columns, steps: list[TrainStep]) -> Any:
        self.seen.append(columns)
        self.told.append(f"train {role}")
        times = {"perf/forward_time": [1.0, 4.0, 2.0, 3.0][self.number]}
        return [{"train/loss": 0.5} | times] * len(steps)

    def write_weights(self, version: int) -> WeightManifest | None:
        return WeightManifest("segment", 8, version, ()) if self.number == 0 else None

    def begin_weights(self, readers: Readers) -> StreamMember:
        """Two ranks of each of two stages, the first of which sends."""
        stage, follows = divmod(self.number, 2)
        group = GroupAddress(f"stage {stage}", "host", 1, readers.count + 1, "gloo")
        return StreamMember(stage, None if follows else group)

    def next_bucket(self) -> WeightBucket | None:
        self.told.append("next_bucket")
        return (
            None if self.number % 2 else WeightBucket(7, (TensorSlot(str(self.number), "float32", (1,), 0),))
        )

    def save(self, folder: Path) -> Digests:
        return {f"{folder}/{self.number}": "digest"}

    def check_files(self, folder: Path, digests: Digests) -> dict[str, str]:
        self.told.append(f"check {folder} {' '.join(digests)}")
        return {name: f"seen by {self.number}" for name in digests if name == "trainer/e"}

    def offload(self) -> None:
        self.told.append("offload")

    def reload(self) -> None:
        self.told.append("reload")

    def update_reference(self) -> None:
        self.told.append("update_reference")

    def begin_save(self, folder: Path) -> None:
        self.told.append(f"begin_save {folder}")

    def export_hf(self, folder: Path) -> None:
        self.told.append(f"export_hf {folder}")

    def load(self, folder: Path) -> None:
        self.loaded = str(folder)

    def saved(self) -> Digests | None:
        self.asked += 1
        return {str(self.number): "digest"} if self.asked > self.number else None


def sequences(count: int) -> list[TrainSequence]:
    return [
        TrainSequence(
            tokens=np.arange(3, dtype=np.int32),
            prompt_length=1,
            loss_mask=np.ones(2, np.float32),
            advantages=np.full(2, number, np.float32),
            rollout_log_probs=np.zeros(2, np.float32),
            execution=str(number),
        )
        for number in range(count)
    ]


def group() -> tuple[TrainerGroup, list[Rank]]:
    """Two data ranks of two tensor ranks each."""
    ranks = [Rank(number) for number in range(4)]
    return TrainerGroup(ranks), ranks


BATCHES = (((0, 3), (4,)), ((2,), (1,)))
STEP = TrainStep(BATCHES, {})


def handle(trainer: TrainerGroup, role: Role = "policy") -> ModelHandle:
    """A model whose layout has two data ranks of two tensor ranks each."""
    return ModelHandle(trainer, role, lambda _: [STEP], [0, 0, 1, 1])


async def test_each_rank_gets_its_own_data_ranks_sequences() -> None:
    trainer, ranks = group()
    expected = {"train/loss": 0.5, "perf/forward_time": 4.0}  # the slowest rank's
    assert await handle(trainer).train(sequences(5), [STEP, STEP]) == [expected] * 2
    seen = [rank.seen[0].indices.tolist() for rank in ranks]
    assert [sorted(set(indices)) for indices in seen] == [[0, 3, 4], [0, 3, 4], [1, 2], [1, 2]]
    assert ranks[0].shared == 2


@pytest.mark.parametrize(
    ("role", "output", "factor"),
    [
        ("policy", "log_probs", 1),
        ("reference", "log_probs", 2),
        ("teacher", "log_probs", 3),
        ("critic", "values", 4),
    ],
)
async def test_each_models_arrays_come_back_in_the_order_of_the_sequences(
    role: Role, output: Output, factor: int
) -> None:
    trainer, ranks = group()
    arrays = await getattr(handle(trainer, role), output)(sequences(5))
    assert [array[0] for array in arrays] == [factor * number for number in range(5)]
    assert [rank.told for rank in ranks] == [[f"{role} {output}"]] * 4


async def test_a_model_is_trained_in_its_own_layout() -> None:
    trainer, ranks = group()
    for data_ranks in ([0, 0, 1, 1], [0, 1, 0, 1]):
        await ModelHandle(trainer, "critic", lambda _: [STEP], data_ranks).train(sequences(5))
    assert [rank.seen[0].indices.tolist() for rank in ranks] == [[0, 3, 4], [0, 3, 4], [1, 2], [1, 2]]
    assert [rank.seen[1].indices.tolist() for rank in ranks] == [[0, 3, 4], [1, 2], [0, 3, 4], [1, 2]]
    assert [rank.told for rank in ranks] == [["train critic"] * 2] * 4


async def test_the_critic_is_trained_while_the_policys_weights_are_handed_over() -> None:
    trainer, ranks = group()
    await trainer.write_weights(7)
    async with trainer.hand_over(7, READERS):
        await handle(trainer, "critic").train(sequences(5))
    async with trainer.hand_over(7, READERS):
        assert [rank.told for rank in ranks] == [["train critic"]] * 4


async def test_the_slowest_rank_counts_and_counting_starts_over() -> None:
    trainer, _ = group()
    await handle(trainer).log_probs(sequences(5))
    await handle(trainer).train(sequences(5))
    assert trainer.seconds_used() == 4.0 + 4.0
    assert trainer.seconds_used() == 0.0


async def test_rank_0_says_where_the_weights_are() -> None:
    trainer, _ = group()
    assert (await trainer.write_weights(7)).version == 7


async def test_weights_that_are_handed_over_stay_as_they_are_meanwhile() -> None:
    trainer, ranks = group()
    await trainer.write_weights(7)
    async with trainer.hand_over(7, READERS) as streams:
        assert [stream.group and stream.group.name for stream in streams] == ["stage 0", "stage 1"]
        training = asyncio.create_task(handle(trainer).train(sequences(5)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ranks[0].seen
        [slot] = (await streams[1].next()).tensors
        assert slot.name == "2"
        assert [rank.told for rank in ranks] == [[], [], ["next_bucket"], ["next_bucket"]]
    await training
    with pytest.raises(WeightsMoved):
        async with trainer.hand_over(7, READERS):
            pass


async def test_weights_that_were_loaded_over_are_not_handed_over() -> None:
    trainer, ranks = group()
    await trainer.write_weights(7)
    async with trainer.hand_over(7, READERS):
        loading = asyncio.create_task(trainer.load(Path("checkpoint")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ranks[0].loaded
    await loading
    assert [rank.loaded for rank in ranks] == ["checkpoint"] * 4
    with pytest.raises(WeightsMoved, match="no longer has weights 7"):
        async with trainer.hand_over(7, READERS):
            pass


async def test_weights_that_were_never_written_are_not_handed_over() -> None:
    trainer, _ = group()
    for version in (0, 1):
        with pytest.raises(WeightsMoved):
            async with trainer.hand_over(version, READERS):
                pass


@pytest.mark.parametrize("what", ["offload", "reload", "update_reference"])
async def test_every_rank_gets_every_call(what: str) -> None:
    trainer, ranks = group()
    await getattr(trainer, what)()
    assert [rank.told for rank in ranks] == [[what]] * 4


@pytest.mark.parametrize("what", ["begin_save", "export_hf"])
async def test_every_rank_writes(what: str) -> None:
    trainer, ranks = group()
    await getattr(trainer, what)(Path("there"))
    assert [rank.told for rank in ranks] == [[f"{what} there"]] * 4


async def test_ranks_are_asked_until_each_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.runner.cluster.trainer_group.SAVE_POLL_SECONDS", 0)
    trainer, ranks = group()
    assert await trainer.saved() == {str(number): "digest" for number in range(4)}
    assert [rank.asked for rank in ranks] == [1, 2, 3, 4]


async def test_the_digests_of_all_ranks_come_back() -> None:
    trainer, _ = group()
    assert await trainer.save(Path("there")) == {f"there/{number}": "digest" for number in range(4)}


async def test_ranks_share_out_the_files_to_check() -> None:
    trainer, ranks = group()
    digests = {f"trainer/{name}": "digest" for name in "gfedcba"}
    assert await trainer.check(Path("there"), digests) == {"trainer/e": "seen by 0"}
    files = [rank.told[0].removeprefix("check there ").split() for rank in ranks]
    assert files == [
        ["trainer/a", "trainer/e"],
        ["trainer/b", "trainer/f"],
        ["trainer/c", "trainer/g"],
        ["trainer/d"],
    ]


async def test_a_full_disk_on_a_rank_is_an_os_error() -> None:
    trainer, ranks = group()
    ranks[2].fails = ProcessFailure("trainer 2", "raised", "OSError: full", Path("log"), errno.ENOSPC)
    with pytest.raises(OSError, match="trainer 2"):
        await trainer.save(Path("checkpoint"))


async def test_another_failure_stays_what_it_is() -> None:
    trainer, ranks = group()
    ranks[1].fails = ProcessFailure("trainer 1", "died", "killed", Path("log"))
    with pytest.raises(ProcessFailure, match="trainer 1 died"):
        await trainer.save(Path("checkpoint"))
