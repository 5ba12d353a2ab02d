"""What differs between two documents."""

from typing import Any

import pytest

from rlrun.specs.reading.differences import find_differences


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a: 1 -> 2"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": True}, {"a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, ["a.c: 2 -> unset"]),
        ({"a": None}, {"a": {"b": 1}}, ["a.b: unset -> 1"]),
        ({"a": 3}, {"a": {"b": 1}}, ["a: 3 -> { b = 1 }"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a: [1, 2] -> [1]"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}, {"b": 3}]}, ["a.0.b: 1 -> 2", "a.1.b: unset -> 3"]),
        ({"a": [{"b": 1}]}, {"a": []}, ["a: [{ b = 1 }] -> []"]),
        ({"a": 'x"'}, {"a": "y"}, ['a: "x\\"" -> "y"']),
    ],
)
def test_differences(before: Any, after: Any, expected: list[str]) -> None:
    assert [str(each) for each in find_differences(before, after)] == expected
