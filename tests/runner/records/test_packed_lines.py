import json
from pathlib import Path

import pytest
import zstandard

from rlrun.runner.records import packed_lines
from rlrun.runner.records.packed_lines import UnreadableFile, read_records, write_lines
from rlrun.runner.records.saved_rollouts import read_groups

RECORDS = [{"id": f"{number}-0", "text": "naïve\u2028line" * number} for number in range(300)]


def written(tmp_path: Path) -> Path:
    path = tmp_path / "step-1.jsonl.zst"
    write_lines(path, (json.dumps(record, ensure_ascii=False) for record in RECORDS))
    return path


def pack(path: Path, data: bytes) -> Path:
    path.write_bytes(zstandard.compress(data))
    return path


def test_records_come_back_whatever_the_chunks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    for size in (1, 7, 1 << 20):
        monkeypatch.setattr(packed_lines, "_CHUNK_BYTES", size)
        assert list(read_records(path)) == RECORDS


def test_a_last_line_without_its_break_counts(tmp_path: Path) -> None:
    assert list(read_records(pack(tmp_path / "a.zst", b'{"a": 1}\n{"a": 2}'))) == [{"a": 1}, {"a": 2}]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    for position in range(0, len(good), max(1, len(good) // 100)):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFile, match=r"step-1\.jsonl\.zst"):
            list(read_records(path))


@pytest.mark.parametrize("kept", [0, 1, 10, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_noticed(tmp_path: Path, kept: float) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[: int(kept if kept >= 1 else kept * len(good))])
    with pytest.raises(UnreadableFile, match=r"step-1\.jsonl\.zst"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": 1,,}', r"a\.zst:2 is not JSON"),
        (b"\xff\xfe", r"a\.zst:2 is not JSON"),
        (b"[" * 100_000, r"a\.zst:2 is not JSON"),
        (b"[1]", r"a\.zst:2 is not a sample"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        list(read_records(pack(tmp_path / "a.zst", b'{"id": 0}\n' + line + b"\n")))


@pytest.mark.parametrize("declared", [True, False], ids=["its size declared", "its size left out"])
@pytest.mark.parametrize("line", [b"0" * 64, b'{"id": 0}\n' * 8], ids=["one line", "many lines"])
def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool, line: bytes
) -> None:
    monkeypatch.setattr(packed_lines, "_ALWAYS_READ", 1 << 20)
    data = line * (50_000_000 // len(line))
    compressor = zstandard.ZstdCompressor(write_content_size=declared)
    path = tmp_path / "step-1.jsonl.zst"
    path.write_bytes(compressor.compress(data))
    assert path.stat().st_size < 20_000
    with pytest.raises(UnreadableFile, match=r"step-1\.jsonl\.zst would decompress to more than"):
        for _ in read_records(path):
            pass


def test_one_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_lines, "_MAX_LINE_LENGTH", 1 << 20)
    path = pack(tmp_path / "step-1.jsonl.zst", b"0" * 8_000_000)
    with pytest.raises(UnreadableFile, match=r"step-1\.jsonl\.zst has a line of more than 1 MiB"):
        read_groups(path)
