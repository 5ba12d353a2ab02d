"""Checkpoints that are written during training hold the state at the time when they were begun."""

import json
import os
from pathlib import Path

import pytest
import torch

from rlrun.converters.folders.checksums import checksum
from rlrun.runner.trainer.checkpoints import background_save as saving
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("saving_worker.py")
DEADLINE = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1, pad_token_id=None)


def until_saved(rank):
    """Wait for this rank's part; returns the checksums of its files."""
    rank._saving._writing.exception(DEADLINE)
    digests = rank.saved()
    assert digests
    return digests


def content(folder):
    """The written files, by name; their table of contents knows its own folder."""
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*.distcp")}


def saved_both_ways(rank, spec, folder):
    """Train, save, begin to save, train on; the two folders. The rank's checksums go into a file beside."""
    sequences = make_sequences(6)
    rank.policy.train(sequences, plan(sequences, spec))
    digests = rank.save(folder / "now")
    rank.begin_save(folder / "meanwhile")
    rank.policy.train(sequences, plan(sequences, spec))
    digests |= until_saved(rank)
    (folder / f"digests-{os.getpid()}.json").write_text(json.dumps(digests))
    return folder / "now", folder / "meanwhile"


def check_digests(folder):
    """Every file of both folders has the checksum of the rank that wrote it."""
    tables = [json.loads(path.read_text()) for path in folder.glob("digests-*.json")]
    files = [path for name in ("now", "meanwhile") for path in (folder / name).rglob("*") if path.is_file()]
    assert sum(map(len, tables)) == len(files)
    assert {name: digest for table in tables for name, digest in table.items()} == {
        str(path): checksum(path.read_bytes()) for path in files
    }


@pytest.mark.parametrize("offload", ["none", pytest.param("optimizer", marks=pytest.mark.slow)])
def test_what_is_written_meanwhile_is_the_same_bit_for_bit(folder, tmp_path, offload):
    spec = make_spec(folder, algorithm={"type": "ppo"}, offload=offload)
    rank = make_rank(folder, spec)
    now, meanwhile = saved_both_ways(rank, spec, tmp_path)
    assert content(now) == content(meanwhile)
    assert {path.parts[0] for path in content(now)} > {"critic"}
    check_digests(tmp_path)
    resumed = make_rank(folder, spec)
    resumed.load(meanwhile)
    sequences = make_sequences(6)
    resumed.policy.train(sequences, plan(sequences, spec))
    ours, theirs = dict(resumed.policy.parameters.gather()), dict(rank.policy.parameters.gather())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for one in (rank, resumed):
        one.close()


def test_a_disk_that_fills_up_meanwhile_reaches_the_caller(folder, tmp_path, monkeypatch):
    rank = make_rank(folder, make_spec(folder))

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_state", full)
    rank.begin_save(tmp_path / "full")
    with pytest.raises(OSError, match="No space left on device"):
        until_saved(rank)
    monkeypatch.undo()
    rank.begin_save(tmp_path / "again")
    until_saved(rank)
    rank.close()


def test_ranks_write_together_while_they_train(folder, tmp_path):
    run_ranks(WORKER, 2, [str(folder), str(tmp_path)], tmp_path)
    check_digests(tmp_path)
    assert content(tmp_path / "now")
    assert content(tmp_path / "now") == content(tmp_path / "meanwhile")
