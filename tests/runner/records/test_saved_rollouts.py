from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.plugins.types import Group, Sample, Status, TurnReward, VersionSpan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import map_records, read_groups, rollout_path, write_records
from rlrun.runner.rollouts.saved_source import SavedSource
from tests.runner.loop_fakes import prompt, sample


def odd_sample() -> Sample:
    """With everything that is easily lost on the way."""
    mask = np.array([1, 0, 1, 0.25], dtype=np.float32)
    return sample(
        7,
        1,
        float("nan"),
        length=4,
        log_probs=np.array([-0.1, -1e-30, -np.float32(1) / 3, 0], dtype=np.float32),
        loss_mask=mask,
        versions=(VersionSpan(2, 0, 3), VersionSpan(3, 3, 4)),
        status=Status.FAILED,
        text='naïve\n"quoted" \U0001f600',
        execution_id="7-1",
        rewards={"math": 0.1},
        turn_rewards=(TurnReward(1, 0.1), TurnReward(4, -1e-30)),
        failure="crashed",
        cross_entropy=np.array([0, 0.1, 0, 1], dtype=np.float32),
        policy_weights=np.array([1, 1, 0.3, 1], dtype=np.float32),
        kl_weights=np.array([0, 1, 0.7, 1], dtype=np.float32),
        info={"calls": 2},
        experts=np.arange(24, dtype=np.int16).reshape(6, 4),
        sampling_mask=SamplingMask(np.array([5, 151_000, 9], np.int32), np.array([1, 0, 2, 0], np.int32)),
    )


def groups() -> list[Group]:
    other = sample(7, 2, 1.0, prompt=replace(prompt(7), tokens=np.array([9, 9], dtype=np.int32)))
    return [Group(prompt(3), [sample(3, 0, 0.5)]), Group(prompt(7), [sample(7, 0), odd_sample(), other])]


def save(folder: Path, step: int, *, whole: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = rollout_path(folder, step)
    samples = [(group, one) for group in groups() for one in group.samples]
    write_records(path, map_records(samples, whole=whole))
    return path


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)  # type: ignore[attr-defined]
    return repr(one) == repr(other)


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    read = read_groups(save(tmp_path, 1))
    assert [len(group.samples) for group in read] == [1, 3]
    for group, before in zip(read, groups(), strict=True):
        assert group.prompt.row == before.prompt.row
        assert np.array_equal(group.prompt.tokens, before.prompt.tokens)
        for one, other in zip(group.samples, before.samples, strict=True):
            for name in Sample.__dataclass_fields__:
                assert name == "prompt" or same(getattr(one, name), getattr(other, name)), name
            assert np.array_equal(one.prompt.tokens, other.prompt.tokens)
            one.loss_mask[:] = 0  # it may be written to


def test_a_file_for_people_is_not_trained_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"step-1.jsonl.zst has samples without 'metadata'.*save_rollouts"):
        read_groups(save(tmp_path, 1, whole=False))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "step-1.jsonl.zst"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        read_groups(path)


async def test_a_source_of_saved_samples_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        save(run.rollouts, step)
    source = SavedSource(run, 1, 3, vocab_size=20, masked=True)
    batch = await source.next(4)
    assert [group.prompt.index for group in batch.groups] == [3, 7]
    assert batch.measure()["rollout/staleness/max"] == 4
    state = source.state()
    resumed = SavedSource(run, 1, 3, vocab_size=20, masked=True)
    await resumed.restore(state)
    assert resumed.state() == {"saved_step": 2}
    with pytest.raises(ValueError, match="generated its own samples"):
        await resumed.restore({"epoch": 0})


@pytest.mark.parametrize(
    ("fraction", "indices"), [(1.0, [*range(8)]), (0.5, [0, 2, 4, 6]), (0.4, [0, 2, 5]), (0.01, [0])]
)
async def test_a_part_of_the_saved_groups(tmp_path: Path, fraction: float, indices: list[int]) -> None:
    run, [first, _] = RunFolder(tmp_path), groups()
    several = [Group(replace(first.prompt, index=index), first.samples) for index in range(8)]
    records = [
        {**record, "index": number}
        for number, group in enumerate(several)
        for record in map_records([(group, sample) for sample in group.samples], whole=True)
    ]
    run.rollouts.mkdir()
    write_records(rollout_path(run.rollouts, 1), records)
    source = SavedSource(run, 1, 1, vocab_size=20, fraction=fraction)
    assert [group.prompt.index for group in (await source.next(0)).groups] == indices


async def test_samples_that_are_missing_or_of_another_tokenizer(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save(run.rollouts, 1)
    with pytest.raises(ValueError, match=r"has no samples of step 2, and this job goes to step 4"):
        SavedSource(run, 1, 4, vocab_size=20)
    with pytest.raises(
        ValueError, match="samples with token 9, but the vocabulary of this model has 9 tokens"
    ):
        await SavedSource(run, 1, 1, vocab_size=9).next(0)


@pytest.mark.parametrize(
    ("kept", "message"), [(True, "with sampling masks.*: set"), (False, "no sampling masks.*: remove")]
)
async def test_saved_samples_have_masks_where_the_spec_trains_over_them(
    tmp_path: Path, kept: bool, message: str
) -> None:
    one = odd_sample()
    samples = [one if kept else replace(one, sampling_mask=None)]
    tmp_path.joinpath("rollouts").mkdir()
    path = rollout_path(RunFolder(tmp_path).rollouts, 1)
    write_records(path, map_records([(Group(one.prompt, samples), samples[0])], whole=True))
    with pytest.raises(ValueError, match=message):
        await SavedSource(RunFolder(tmp_path), 1, 1, vocab_size=20, masked=not kept).next(0)
    batch = await SavedSource(RunFolder(tmp_path), 1, 1, vocab_size=20, masked=kept).next(0)
    assert len(batch.groups[0].samples) == 1
