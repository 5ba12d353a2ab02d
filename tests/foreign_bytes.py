"""Fuzzes readers of bytes that rlrun did not write: each returns a result, or raises an error of ours.

Add a reader as one row of `READERS` in `test_foreign_bytes.py`: an example of what it reads, and a function
that reads it. The bytes that it gets are the example with JSON values replaced, bytes changed, or its end cut
off, and bytes that never were an example.
"""

import copy
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.scoring.worker import MissingKey

OURS = (ValueError, OSError, JobError, MissingKey)
"""What commands report as a user's mistake, in one line and without a traceback."""
_SECONDS = 60
"""A reader that takes longer hangs."""
_HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**30, 1e308, -1e308, float("nan"), float("inf"), 0.5),
    *("", "x", "1", "default", "x" * 10_000, "\ud800", "\0", "../x", "e\u0301", "\u202e"),
    *([], {}, [[]], {"": {}}, [None], [3], {"a": [3]}, ["x", 3]),
)


@dataclass(frozen=True)
class Reader:
    """A reader of foreign bytes."""

    name: str
    example: bytes
    """What it reads without an error."""
    read: Callable[[bytes, Path], object]
    """Reads bytes; the path is a folder of its own, where it may write them to."""
    is_json: bool = True
    """The bytes are JSON, or lines of it."""

    def __str__(self) -> str:
        return self.name


def ours_or_a_result(reader: Reader, data: bytes, folder: Path) -> None:
    """Fails if the reader raises an error that is not ours, or hangs."""
    with _alarm(reader.name):
        try:
            reader.read(data, folder)
        except OURS as error:
            assert not isinstance(error, RecursionError)
            assert str(error).strip(), f"{reader} raises {error!r} without a reason"


@contextmanager
def _alarm(name: str) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AssertionError(f"{name} did not end within {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@st.composite
def foreign_bytes(draw: st.DrawFn, reader: Reader) -> bytes:
    """Bytes for a reader: mostly its example with something wrong."""
    kinds = (
        ["values", "nested", "bytes", "cut", "anything"] if reader.is_json else ["bytes", "cut", "anything"]
    )
    kind = draw(st.sampled_from(kinds))
    example = reader.example
    if kind == "anything":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return example[: draw(st.integers(0, len(example)))]
    if kind == "values":
        return _with_values(draw, example)
    if kind == "nested":
        return _nested(draw, example)
    data = bytearray(example)
    for _ in range(draw(st.integers(1, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def _with_values(draw: st.DrawFn, example: bytes) -> bytes:
    """The example's JSON, with some values replaced, removed or repeated."""
    lines = [json.loads(line) for line in _json_lines(example)]
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = _replaced(draw, copy.deepcopy(lines[number]))
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"


def _json_lines(example: bytes) -> list[bytes]:
    try:
        json.loads(example)
    except ValueError:
        return example.splitlines()
    return [example]


def _replaced(draw: st.DrawFn, value: Any) -> Any:
    """A value in which one part, at any depth, is another."""
    parts = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    if not parts or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(_HOSTILE))
    key, part = parts[draw(st.integers(0, len(parts) - 1))]
    action = draw(st.integers(0, 6))
    if action == 0:
        del value[key]
    elif action == 1 and isinstance(value, list):
        value.append(copy.deepcopy(part))
    elif action == 2 and isinstance(value, dict):
        value[draw(st.sampled_from(["", "x", "__metadata__", "\ud800", "a\nb"]))] = part
    else:
        value[key] = _replaced(draw, part)
    return value


def _nested(draw: st.DrawFn, example: bytes) -> bytes:
    """The example with one value nested without bounds, closed or not, or with a number without bounds."""
    depth = draw(st.sampled_from([150, 250, 980, 1020, 5000, 100_000]))
    bomb = draw(
        st.sampled_from(
            [b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"9" * depth]
        )
    )
    if draw(st.booleans()):
        return bomb
    colons = [index for index, byte in enumerate(example) if byte in b":,["]
    at = draw(st.sampled_from(colons or [len(example)])) + 1
    return example[:at] + bomb + b"," + example[at:] if draw(st.booleans()) else example[:at] + bomb + b"}"
