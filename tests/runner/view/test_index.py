import os
import stat
from contextlib import closing
from pathlib import Path

import pytest
import zstandard

from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.view import indexer as indexer_module
from rlrun.runner.view.index import connect, read_files, writing
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.queries import list_problems, query_of
from tests.runner.view.view_runs import old_record, record, write_run, write_step


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "run")


@pytest.fixture
def indexer(folder: RunFolder, tmp_path: Path) -> Indexer:
    indexer = Indexer(folder, tmp_path / "cache" / "index.sqlite")
    indexer.update()
    return indexer


def test_no_file_counts_as_indexed_before_a_page_can_read_it(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexer = Indexer(folder, tmp_path / "cache" / "index.sqlite")
    counts = []

    def read_file(path: Path) -> object:
        with closing(connect(indexer.path)) as index:
            counts.append((indexer.progress.indexed, len(read_files(index))))
        return read(path)

    read = indexer_module._read_file
    monkeypatch.setattr(indexer_module, "_read_file", read_file)
    indexer.update()
    assert len(counts) == indexer.progress.files == indexer.progress.indexed == 6
    assert all(indexed <= readable for indexed, readable in counts)


def samples(indexer: Indexer, **filters: str) -> list[tuple[int, int]]:
    with closing(connect(indexer.path)) as index:
        return [(row["step"], row["line"]) for row in query_of(filters).rows(index, 100)]


@pytest.mark.parametrize(
    ("filters", "first", "count"),
    [
        ({}, (4, 1), 32),
        ({"order": "oldest"}, (1, 1), 32),
        ({"order": "worst"}, (4, 1), 32),
        ({"order": "best"}, (4, 8), 32),
        ({"order": "longest"}, (4, 8), 32),
        ({"order": "shortest", "from_step": "2", "to_step": "3"}, (3, 1), 16),
        ({"status": "truncated"}, (4, 8), 4),
        ({"min_reward": "1"}, (4, 2), 24),
        ({"max_reward": "0.5", "row": "row 0"}, (4, 1), 8),
        ({"kind": "eval", "dataset": "held-out"}, (4, 1), 4),
        ({"failed": "1"}, None, 0),
        ({"status": "' OR 1 = 1 --"}, None, 0),
    ],
)
def test_samples_are_filtered_and_sorted(
    indexer: Indexer, filters: dict[str, str], first: tuple[int, int] | None, count: int
) -> None:
    rows = samples(indexer, **filters)
    assert (rows[0] if rows else None, len(rows)) == (first, count)


def test_groups_that_disagree_most_come_first(indexer: Indexer) -> None:
    with closing(connect(indexer.path)) as index:
        rows = list(query_of({"order": "disagreed"}).rows(index, 10))
    assert [(row["row"], row["spread"]) for row in rows[:5]] == [("row 0", 0.5)] * 4 + [("row 1", 0.0)]


def test_files_that_change_or_go_are_read_again(folder: RunFolder, indexer: Indexer) -> None:
    write_step(folder, 4, [record(4, 0)])
    (folder.rollouts / "step-3.jsonl.zst").unlink()
    write_step(folder, 5, [record(5, line) for line in range(3)])
    indexer.update()
    rows = samples(indexer)
    assert [step for step, _ in rows[:5]] == [5, 5, 5, 4, 2]
    assert (indexer.progress.indexed, indexer.progress.files) == (6, 6)


def test_damaged_lines_and_files_are_named_and_left_out(folder: RunFolder, indexer: Indexer) -> None:
    path = folder.rollouts / "step-2.jsonl.zst"
    lines = zstandard.decompress(path.read_bytes()).splitlines()
    lines[1] = b"\xff not JSON"
    path.write_bytes(zstandard.compress(b"\n".join(lines)))
    whole = folder.rollouts / "step-3.jsonl.zst"
    whole.write_bytes(whole.read_bytes()[:-30])
    indexer.update()
    assert [place for place in samples(indexer) if place[0] == 2][:2] == [(2, 1), (2, 3)]
    with closing(connect(indexer.path)) as index:
        problems = list_problems(index)
    assert any("step-2.jsonl.zst:2" in problem for problem in problems)
    assert any("step-3.jsonl.zst" in problem for problem in problems)


def test_records_of_older_versions_and_of_other_makers_are_indexed(
    folder: RunFolder, indexer: Indexer
) -> None:
    strange = {
        "id": ["a"],
        "reward": float("nan"),
        "tokens": "many",
        "versions": [[]],
        "status": None,
        "row": 1,
    }
    write_step(folder, 9, [old_record(9, 1), strange, {"reward": 10**400, "versions": 3, "id": "\ud800"}])
    indexer.update()
    assert samples(indexer)[:3] == [(9, 1), (9, 2), (9, 3)]


def test_a_damaged_index_is_built_again(folder: RunFolder, indexer: Indexer) -> None:
    for path in indexer.path.parent.iterdir():
        path.write_bytes(b"not a database, not at all" * 400)
    again = Indexer(folder, indexer.path)
    again.update()
    assert len(samples(again)) == 32


@pytest.mark.parametrize("planted", ["link", "link to nothing", "pipe"])
def test_what_was_planted_in_place_of_an_index_is_replaced(planted: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "view" / "index.sqlite"
    path.parent.mkdir()
    if planted == "link":
        victim.write_text("precious")
        victim.chmod(0o644)
    if planted == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim)
    with writing(path):
        pass
    assert stat.S_ISREG(path.lstat().st_mode) and stat.S_IMODE(path.lstat().st_mode) == 0o600
    if planted == "link":
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o644)
    else:
        assert not victim.exists()
