"""The scanner against tomli: the same key paths, and each mark's text means the value tomli found."""

import datetime
import math
from typing import Any

import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.specs.problems.positions import KeyPath, find_positions, line_and_column

BARE_KEYS = st.text("abcXYZ019_-", min_size=1, max_size=4)
KEYS = st.one_of(BARE_KEYS, st.text(max_size=4))
BLANKS = st.sampled_from(["", " ", "\t", "  "])
GAPS = st.sampled_from(["", " ", "\n", "\n\n  ", " # a, comment ] } \" '''\n\t"])


def quoted(value: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value)
    return f'"{escaped}"'


@st.composite
def written_key(draw: Any, key: str) -> str:
    if key and all(c in "abcXYZ019_-" for c in key):
        return key
    if key.isprintable() and "'" not in key and draw(st.booleans()):
        return f"'{key}'"
    return quoted(key)


SCALARS = st.sampled_from(
    ["1", "0x1F", "1_000", "-3.5e-7", "inf", "-nan", "true", "false",
     "1979-05-27T07:32:00Z", "1979-05-27 07:32:00.5", "1979-05-27", "07:32:00",
     '"a#b]}"', "'c:\\d'", '"""x\n"" y\\"""""', "'''z\n'']'''",
     '""', "''", '""""""', "''''''", '"\\" \\\\"', '"""a\\\n   b"""', '"""""five"""""', "'''''five'''''"]
)  # fmt: skip


@st.composite
def value(draw: Any, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "array", "table"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(SCALARS)
    if kind == "array":
        items = draw(st.lists(value(depth - 1), max_size=3))
        body = ",".join(draw(GAPS) + item + draw(GAPS) for item in items)
        return f"[{body}{draw(st.sampled_from([',', ''])) if items else draw(GAPS)}]"
    pairs = draw(st.lists(st.tuples(KEYS, value(depth - 1)), max_size=3, unique_by=lambda pair: pair[0]))
    body = ",".join(
        f"{draw(GAPS)}{draw(written_key(key))}{draw(BLANKS)}={draw(BLANKS)}{text}{draw(GAPS)}"
        for key, text in pairs
    )
    return "{" + body + "}"


@st.composite
def statement(draw: Any) -> str:
    dotted = draw(st.lists(KEYS, min_size=1, max_size=3))
    keys = f"{draw(BLANKS)}.{draw(BLANKS)}".join(draw(written_key(key)) for key in dotted)
    match draw(st.sampled_from(["pair", "pair", "table", "array", "comment"])):
        case "pair":
            return f"{draw(BLANKS)}{keys}{draw(BLANKS)}={draw(BLANKS)}{draw(value())}{draw(BLANKS)}"
        case "table":
            return f"{draw(BLANKS)}[{draw(BLANKS)}{keys}{draw(BLANKS)}] # header"
        case "array":
            return f"[[{draw(BLANKS)}{keys}{draw(BLANKS)}]]"
        case _:
            return "# [not.a.header] a = 1"


@st.composite
def document(draw: Any) -> str:
    """Statements that tomli takes together; one that clashes with those before it is left out."""
    text = ""
    for line in draw(st.lists(statement(), max_size=8)):
        candidate = f"{text}{line}\n"
        try:
            tomli.loads(candidate)
        except tomli.TOMLDecodeError:
            continue
        text = candidate
    return text


def paths_of(data: Any, prefix: KeyPath = ()) -> dict[KeyPath, Any]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = {} if not prefix else {prefix: data}
    for key, inner in items:
        found |= paths_of(inner, (*prefix, key))
    return found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[k], right[k]) for k in left)
        )
    return bool(left == right)


@settings(max_examples=300, deadline=None)
@given(document())
def test_marks_every_path_that_tomli_finds(text: str) -> None:
    data = tomli.loads(text)
    marks = find_positions(text)
    expected = paths_of(data)
    assert marks.keys() == expected.keys()
    for path, mark in marks.items():
        if isinstance(path[-1], str):
            assert next(iter(tomli.loads(f"{text[mark.key_start : mark.key_end]} = 0"))) == path[-1]
        if not isinstance(expected[path], (dict, list)):
            written = text[mark.value_start : mark.value_end]
            assert same(tomli.loads(f"x = {written}")["x"], expected[path])


def test_headers_and_dotted_keys() -> None:
    text = "a.b = 1\n[[c]]\n d = {e = [1, 'x']}\n[[c]]\n[c.f]\ng = 2020-01-01 10:00:00\n"
    marks = find_positions(text)
    places = {path: line_and_column(text, mark.key_start) for path, mark in marks.items()}
    assert places == {
        ("a",): (1, 1), ("a", "b"): (1, 3),
        ("c",): (2, 3), ("c", 0): (2, 3), ("c", 0, "d"): (3, 2), ("c", 0, "d", "e"): (3, 7),
        ("c", 0, "d", "e", 0): (3, 12), ("c", 0, "d", "e", 1): (3, 15),
        ("c", 1): (4, 3), ("c", 1, "f"): (5, 4), ("c", 1, "f", "g"): (6, 1),
    }  # fmt: skip
    last = marks["c", 1, "f", "g"]
    assert text[last.value_start : last.value_end] == "2020-01-01 10:00:00"
    assert tomli.loads(text)["c"][1]["f"]["g"] == datetime.datetime(2020, 1, 1, 10)
