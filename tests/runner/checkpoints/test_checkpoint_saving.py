import asyncio
import errno
import threading
from pathlib import Path

import pytest

from rlrun.runner.checkpoints.folder import checkpoint_of, clear_unfinished
from rlrun.runner.checkpoints.reading import read_driver
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from rlrun.runner.contracts.errors import JobError
from tests.runner.loop_fakes import Trainer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_checkpoint_holds_trainer_and_driver(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    trainer = Trainer()
    trainer.logit = 0.25
    await checkpoints.save(trainer, 3, {"data": {"place": 12}})
    assert checkpoints.newest() == tmp_path / "step-3"
    assert read_driver(tmp_path / "step-3") == {"data": {"place": 12}}
    other = Trainer()
    await other.load(trainer_folder(tmp_path / "step-3"))
    assert other.logit == 0.25


async def test_the_newest_ones_are_kept_by_number_not_by_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        await checkpoints.save(Trainer(), step, {})
    assert names(tmp_path) == ["step-10", "step-11"]


async def test_none_is_deleted_if_all_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep="all")
    for step in (1, 2, 3, 4):
        await checkpoints.save(Trainer(), step, {})
    assert names(tmp_path) == ["step-1", "step-2", "step-3", "step-4"]


async def test_one_that_is_there_already_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    await checkpoints.save(Trainer(), 3, {"data": 1})
    await checkpoints.save(Trainer(), 3, {"data": 2})
    assert read_driver(tmp_path / "step-3") == {"data": 1}


async def test_the_driver_alone(tmp_path: Path) -> None:
    """The checkpoints of a job without a trainer."""
    checkpoints = Checkpoints(tmp_path, keep=1, asynchronous=True)
    await checkpoints.save(None, 1, {"data": 1})
    assert checkpoints.newest() == checkpoint_of(tmp_path, 1) == tmp_path / "step-1"
    assert checkpoint_of(tmp_path, 2) is None


async def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    trainer = Trainer()
    await checkpoints.save(trainer, 1, {})
    trainer.fail = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(
        JobError, match=r"step 2 .* No space left on device; .*step-1, is untouched.*--resume"
    ):
        await checkpoints.save(trainer, 2, {})
    assert names(tmp_path) == ["step-1"]


async def test_a_full_disk_before_the_first_checkpoint(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.fail = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(JobError, match="there is no earlier one"):
        await Checkpoints(tmp_path, keep=1).save(trainer, 2, {})


async def test_the_driver_part_failing_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    await checkpoints.save(Trainer(), 1, {})

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rlrun.runner.checkpoints.saving.sync_tree", full)
    with pytest.raises(JobError, match="No space left"):
        await checkpoints.save(Trainer(), 2, {})
    assert names(tmp_path) == ["step-1"]


async def test_half_written_and_half_deleted_ones_do_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    await checkpoints.save(Trainer(), 1, {})
    (tmp_path / ".step-2.tmp").mkdir()
    (tmp_path / ".step-0.old").mkdir()
    (tmp_path / "step-7").mkdir()  # not ours: no driver part
    assert checkpoints.newest() == tmp_path / "step-1"
    clear_unfinished(tmp_path)
    assert names(tmp_path) == ["step-1", "step-7"]


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, keep=2).newest() is None


async def test_an_asynchronous_one_has_its_name_when_it_is_written(tmp_path: Path) -> None:
    checkpoints, trainer = Checkpoints(tmp_path, keep=2, asynchronous=True), Trainer()
    trainer.logit = 0.25
    await checkpoints.save(trainer, 1, {"data": 1})
    trainer.logit = 0.5  # it trains on
    assert checkpoints.newest() is None
    trainer.written.set()
    await checkpoints.wait_until_written()
    assert checkpoints.newest() == tmp_path / "step-1"
    assert read_driver(tmp_path / "step-1") == {"data": 1}
    other = Trainer()
    await other.load(trainer_folder(tmp_path / "step-1"))
    assert other.logit == 0.25


async def test_the_next_one_waits_for_the_one_before(tmp_path: Path) -> None:
    checkpoints, trainer = Checkpoints(tmp_path, keep=2, asynchronous=True), Trainer()
    await checkpoints.save(trainer, 1, {})
    following = asyncio.create_task(checkpoints.save(trainer, 2, {}))
    await asyncio.wait([following], timeout=0.05)
    assert trainer.events == ["begin save"]
    trainer.written.set()
    await following
    assert names(tmp_path) == [".step-2.tmp", "step-1"]
    trainer.written.set()
    await checkpoints.wait_until_written()
    assert names(tmp_path) == ["step-1", "step-2"]


async def test_a_disk_that_fills_up_during_a_write_is_reported_by_the_next_save(tmp_path: Path) -> None:
    checkpoints, trainer = Checkpoints(tmp_path, keep=2, asynchronous=True), Trainer()
    await checkpoints.save(trainer, 1, {})
    trainer.fail = OSError(errno.ENOSPC, "No space left on device")
    trainer.written.set()
    with pytest.raises(JobError, match=r"step 1 .* No space left on device; there is no earlier one"):
        await checkpoints.save(trainer, 2, {})
    assert names(tmp_path) == []


@pytest.mark.parametrize("failure", [None, ValueError("a rank is gone")])
async def test_an_abandoned_checkpoint_never_gets_its_name(tmp_path: Path, failure: Exception | None) -> None:
    checkpoints, trainer = Checkpoints(tmp_path, keep=2, asynchronous=True), Trainer()
    await checkpoints.save(trainer, 1, {})
    if failure is not None:
        trainer.fail = failure
        trainer.written.set()
    await checkpoints.abandon()
    assert names(tmp_path) == [".step-1.tmp"]
    assert checkpoints.newest() is None
    await checkpoints.wait_until_written()
    clear_unfinished(tmp_path)
    assert names(tmp_path) == []


async def test_one_that_is_being_completed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        began.set()
        may_end.wait()

    monkeypatch.setattr("rlrun.runner.checkpoints.saving.sync_tree", slow)
    checkpoints, trainer = Checkpoints(tmp_path, keep=2, asynchronous=True), Trainer()
    await checkpoints.save(trainer, 1, {})
    trainer.written.set()
    await asyncio.to_thread(began.wait)
    abandoning = asyncio.create_task(checkpoints.abandon())
    await asyncio.wait([abandoning], timeout=0.05)
    waited = not abandoning.done()
    may_end.set()
    await abandoning
    assert waited
    assert names(tmp_path) == ["step-1"]
