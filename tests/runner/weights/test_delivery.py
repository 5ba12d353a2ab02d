"""Weights to several engines that may fail: who serves them, who is named, and what the others are told."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.contracts.weight_updates import (
    Checksums,
    GroupAddress,
    Readers,
    TensorSlot,
    WeightBucket,
    WeightsMoved,
    WeightStream,
)
from rlrun.runner.engines.client.rooms import REGULAR
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.weights import transfer
from rlrun.runner.weights.carriers.broadcast.updates import BroadcastWeights
from rlrun.runner.weights.carriers.disk.updates import FolderWeights, WeightDelta
from rlrun.runner.weights.carriers.tensor.updates import SerializedWeights, SharedBuckets
from rlrun.runner.weights.delivery import Delivery
from tests.waiting import PATIENCE

SLOTS = [TensorSlot(name, "float32", (1,), 0) for name in "ab"]
OTHER_SLOTS = [TensorSlot(name, "float32", (1,), 0) for name in "cde"]
TOGETHER = BroadcastWeights(8, 5, 2)
APART = SharedBuckets(8, 5, 2)


class Engine:
    """An engine's client that fails at the calls that the test names."""

    serving = REGULAR

    def __init__(self, name: str = "engine") -> None:
        self.url = self.name = name
        self.models = "target"
        self.failures: dict[str, Exception] = {}
        self.log: list[str] = []
        self.version = 0
        self.checksums: Checksums | None = None

    async def begin_update(self, groups: Sequence[GroupAddress], rank: int) -> None:
        self.step("begin", f"begin {','.join(group.name for group in groups) or None} {rank}")

    async def send(self, path: str, body: bytes) -> None:
        del path
        fields = json.loads(body)
        if "group_name" in fields:
            self.step("load", f"receive {','.join(fields['names'])} in {fields['group_name']}")
        else:
            self.step("load", f"load {','.join(fields['serialized_named_tensors'])}")
        self.version = int(fields["weight_version"])

    async def end_update(self, checksums: Checksums | None) -> int:
        self.step("end", "end")
        self.checksums = checksums
        return self.version

    async def give_up_update(self) -> None:
        self.log.append("give up")

    async def update_weights(self, update: SerializedWeights | FolderWeights) -> int:
        if isinstance(update, FolderWeights):
            folders = [update.folder, *(delta.folder for delta in update.deltas)]
            what = " ".join(folder for folder in folders if folder is not None)
        else:
            what = ",".join(update.payloads)
        self.step("update", what)
        return update.version

    async def close(self) -> None:
        pass

    def step(self, name: str, line: str) -> None:
        self.log.append(line)
        if name in self.failures:
            raise self.failures.pop(name)


class Trainer:
    """Two buckets of a version, over a group where it is asked for together.

    A second stage has one bucket more, and a group of its own.
    """

    def __init__(self, together: bool = True, stages: int = 1) -> None:
        self.stages = stages
        self.members: list[str] = []
        self.together = together
        self.moved = False
        self.error: str | None = None
        self.aborted: list[str] = []
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def hand_over(self, version: int, readers: Readers) -> AsyncIterator[list[WeightStream]]:
        if self.moved:
            raise WeightsMoved
        self.members.append(" ".join(map("{}.{}".format, readers.engines, readers.restarts)))
        yield [self.stream(stage, version, readers) for stage in range(self.stages)]

    def stream(self, stage: int, version: int, readers: Readers) -> WeightStream:
        processes = () if self.together else readers.process_numbers
        buckets = [
            WeightBucket(version, (slot,), {process: f"{slot.name}{process}" for process in processes})
            for slot in (SLOTS if stage == 0 else OTHER_SLOTS)
        ]
        if self.error and stage == self.stages - 1:
            buckets[1] = WeightBucket(version, error=self.error)
        last = WeightBucket(version, checksums=Checksums(({f"s{stage}": "1"}, {f"s{stage}": "2"}), ("x",)))
        following = iter([*buckets, last, last])
        name, size = f"g{len(self.members)}{'-' * stage}", 1 + readers.count

        async def following_bucket() -> WeightBucket:
            return next(following)

        async def abort(reason: str) -> None:
            self.aborted.append(reason)
            self.ended.set()

        group = GroupAddress(name, "h", 1, size, "gloo") if self.together else None
        return WeightStream(group, following_bucket, abort)


async def deliver(made: Delivery, update: object, engines: list[Engine]) -> dict[int, Exception]:
    return await made.deliver(update, dict(enumerate(engines)))  # type: ignore[arg-type]


async def test_every_engine_takes_part_in_every_bucket() -> None:
    engines = [Engine(), Engine()]
    trainer = Trainer()
    made = Delivery(2)
    assert await deliver(made, replace(TOGETHER, trainer=trainer), engines) == {}
    assert [engine.log for engine in engines] == [
        ["begin g1 1", "receive a in g1", "receive b in g1", "end"],
        ["begin g1 3", "receive a in g1", "receive b in g1", "end"],
    ]
    await deliver(made, replace(TOGETHER, trainer=trainer), engines)
    assert trainer.members == ["0.0 1.0", "0.0 1.0"]  # the same group


async def test_engines_take_a_bucket_of_each_stage_in_turn() -> None:
    engine = Engine()
    assert await deliver(Delivery(1), replace(TOGETHER, trainer=Trainer(stages=2)), [engine]) == {}
    assert engine.log == [
        "begin g1,g1- 1",
        "receive a in g1",
        "receive c in g1-",
        "receive b in g1",
        "receive d in g1-",
        "receive e in g1-",
        "end",
    ]
    assert engine.checksums == Checksums(({"s0": "1", "s1": "1"}, {"s0": "2", "s1": "2"}), ("x",))


async def test_a_stage_that_cannot_send_ends_the_update_of_all_stages() -> None:
    engine, trainer = Engine(), Trainer(stages=2)
    trainer.error = "no room"
    failures = await deliver(Delivery(1), replace(TOGETHER, trainer=trainer), [engine])
    assert [str(error) for error in failures.values()] == ["engine engine was not given its weights: no room"]
    assert engine.log[-1] == "give up"


async def test_each_engine_reads_its_own_payloads() -> None:
    engines = [Engine(), Engine()]
    assert await deliver(Delivery(2), replace(APART, trainer=Trainer(together=False)), engines) == {}
    assert engines[1].log == ["begin None 3", "load a2,a3", "load b2,b3", "end"]


@pytest.mark.parametrize("error", [EngineGone("gone"), TimeoutError("hung")])
async def test_a_broadcast_is_repeated_without_the_engine_that_broke_it(error: Exception) -> None:
    engines = [Engine(), Engine(), Engine()]
    engines[1].failures["load"] = error
    engines[2].failures["load"] = EngineError("failed to receive: connection closed by peer")
    trainer = Trainer()
    assert await deliver(Delivery(3), replace(TOGETHER, trainer=trainer), engines) == {1: error}
    assert trainer.members == ["0.0 1.0 2.0", "0.0 2.0"]
    again = ["receive a in g2", "receive b in g2", "end"]
    assert engines[0].log == ["begin g1 1", "receive a in g1", "give up", "begin g2 1", *again]
    assert engines[1].log == ["begin g1 3", "receive a in g1"]
    assert engines[2].log[-4:] == ["begin g2 3", *again]


class Waiting(Engine):
    """An engine that waits in the broadcast until the trainer ends it, and forever where it `hangs`."""

    def __init__(self, trainer: Trainer, *, hangs: bool = False) -> None:
        super().__init__()
        self.trainer = trainer
        self.hangs = hangs

    async def send(self, path: str, body: bytes) -> None:
        if len(self.trainer.members) == 1:
            await self.trainer.ended.wait()
            if self.hangs:
                await asyncio.Event().wait()
            raise EngineError("the group was aborted")
        await super().send(path, body)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_lost_engine_ends_the_broadcast_that_the_trainer_and_the_others_wait_in(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_ABORTED_SECONDS", 0.1)
    trainer, lost = Trainer(stages=2), EngineGone("gone")
    engines = [Engine(), Waiting(trainer, hangs=hangs)]
    engines[0].failures["load"] = lost
    failures = await asyncio.wait_for(
        deliver(Delivery(2), replace(TOGETHER, trainer=trainer), engines), PATIENCE
    )
    assert failures.pop(0) is lost
    assert trainer.aborted == ["an engine failed or was lost during the broadcast"] * trainer.stages
    if hangs:
        assert isinstance(failures.pop(1), TimeoutError)
    else:
        assert trainer.members == ["0.0 1.0", "1.0"]
        assert engines[1].log[-1] == "end"
    assert not failures


async def test_an_engine_that_refuses_a_bucket_is_named_and_the_other_engines_get_all_weights() -> None:
    engines, refusal = [Engine(), Engine()], EngineError("no such parameter")
    engines[0].failures["load"] = refusal
    assert await deliver(Delivery(2), replace(APART, trainer=Trainer(together=False)), engines) == {
        0: refusal
    }
    assert engines[0].log[-1] == "give up"
    assert engines[1].log[-1] == "end"


async def test_an_update_that_the_trainer_could_not_send_fails_for_every_engine() -> None:
    engines, trainer = [Engine("one"), Engine("two")], Trainer()
    trainer.error = "no room"
    failures = await deliver(Delivery(2), replace(TOGETHER, trainer=trainer), engines)
    assert {str(error) for error in failures.values()} == {
        f"engine {name} was not given its weights: no room" for name in ("one", "two")
    }
    assert all(engine.log[-1] == "give up" for engine in engines)


async def test_another_version_and_other_bytes_fail_at_the_end() -> None:
    engines = [Engine("one"), Engine()]
    engines[1].failures["end"] = EngineError("holds other bytes")
    stale = Delivery(2)
    failures = await deliver(stale, BroadcastWeights(8, 5, 2, Trainer()), engines)
    assert set(failures) == {1}


async def test_only_engines_that_have_the_version_before_are_told_what_changed() -> None:
    engines, made = [Engine(), Engine()], Delivery(2)
    await deliver(made, FolderWeights("f1", 8, 1), engines)
    made.forget(1)
    await deliver(made, FolderWeights("f2", 8, 2, "f2-changed", 1), engines)
    assert [engine.log for engine in engines] == [["f1", "f2-changed"], ["f1", "f2"]]


async def test_engines_get_the_deltas_that_they_lack_and_otherwise_everything() -> None:
    engines, made = [Engine(), Engine()], Delivery(2)
    deltas = tuple(WeightDelta(f"d{version}", version - 1, version, (), 1) for version in (2, 3))
    await deliver(made, FolderWeights("f1", 8, 1), engines)
    second = FolderWeights("f1", 1, 2, full_version=1, deltas=deltas[:1])
    await made.deliver(second, {0: engines[0]})  # type: ignore[dict-item]
    third = FolderWeights("f1", 1, 3, full_version=1, deltas=deltas)
    await deliver(made, third, engines)
    made.forget_versions()  # a restarted trainer may give a version's number to other weights
    await deliver(made, third, engines)
    assert engines[0].log == ["f1", "d2", "d3", "f1 d2 d3"]
    assert engines[1].log == ["f1", "d2 d3", "f1 d2 d3"]


async def test_payloads_are_read_once_and_end_with_their_copies() -> None:
    engines, made = [Engine(), Engine()], Delivery(2)
    update = SerializedWeights(8, 1, tuple("abcd"), 2)
    for _ in range(2):
        assert await deliver(made, update, engines) == {}
    assert [engine.log for engine in engines] == [["a", "c"], ["b", "d"]]
    assert "lost 2 times" in str((await deliver(made, update, engines))[0])


async def test_a_failed_engine_gets_the_weights_once_it_is_restarted() -> None:
    engines, trainer = [Engine(), Engine()], Trainer()
    pool = EnginePool(engines, supervised=True)  # type: ignore[arg-type]
    engines[1].failures["end"] = EngineError("holds other bytes")
    assert await pool.update_weights(replace(TOGETHER, trainer=trainer)) == 5
    await pool.wait_until_down(1)
    assert pool.cause(1) == "holds other bytes"
    await pool.readmit(1, Engine())  # type: ignore[arg-type]
    assert trainer.members[-1] == "1.2"
    assert pool.cause(1) is None


async def test_where_the_trainer_went_on_a_mended_engine_waits_for_the_next_update() -> None:
    trainer = Trainer()
    pool = EnginePool([Engine(), Engine()], supervised=True)  # type: ignore[list-item]
    await pool.update_weights(replace(TOGETHER, trainer=trainer))
    pool.mark_down(0)
    trainer.moved = True
    mending = asyncio.create_task(pool.readmit(0, Engine()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not mending.done()
    trainer.moved = False
    await pool.update_weights(BroadcastWeights(8, 6, 2, trainer))
    await asyncio.wait_for(mending, PATIENCE)


async def test_a_mended_engine_that_refuses_the_update_it_waited_for_is_an_error() -> None:
    trainer, mended = Trainer(), Engine()
    mended.failures["load"] = EngineError("no such parameter")
    pool = EnginePool([Engine(), Engine()], supervised=True)  # type: ignore[list-item]
    await pool.update_weights(replace(TOGETHER, trainer=trainer))
    pool.mark_down(0)
    trainer.moved = True
    mending = asyncio.create_task(pool.readmit(0, mended))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    trainer.moved = False
    await pool.update_weights(BroadcastWeights(8, 6, 2, trainer))
    with pytest.raises(EngineError, match="no such parameter"):
        await asyncio.wait_for(mending, PATIENCE)


async def test_a_failed_update_is_an_error_without_a_supervisor() -> None:
    engine = Engine()
    engine.failures["update"] = EngineError("no")
    with pytest.raises(EngineError, match="no"):
        await EnginePool([engine]).update_weights(FolderWeights("f", 8, 1))  # type: ignore[list-item]
