"""The shell reader: what a script says, without running it."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.converters.shell import read_script


def words(tmp_path: Path, text: str) -> list[list[str]]:
    path = tmp_path / "run.sh"
    path.write_text(text)
    return [[word.text for word in command] for command in read_script(path).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a 'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("run a \\\n  b # comment\n", ["run", "a", "b"]),
        ("run a#b", ["run", "a#b"]),
        ("X=1\nrun $X ${X} ${X}2 '$X' \"$X\"", ["run", "1", "1", "12", "$X", "1"]),
        ("X='a b'\nrun $X \"$X\" p$X", ["run", "a", "b", "a b", "pa", "b"]),
        ('run ${Y:-4} ${Y:=5} ${Y-"6 7"}', ["run", "4", "5", "6", "7"]),
        ("run $Y ${Y}/x", ["run", "${Y}", "${Y}/x"]),
        ('A=(--a 1 # one\n  --b "2 3")\nrun ${A[@]} "${A[@]}"', ["run", *["--a", "1", "--b", "2 3"] * 2]),
        ("A=(1)\nA+=(2 3)\nrun ${A[*]}", ["run", "1", "2", "3"]),
        ("A=()\nrun ${A[@]} x", ["run", "x"]),
        ('run "" x', ["run", "", "x"]),
        ("X=1 run x", ["run", "x"]),
        ("export X=7; run $X", ["run", "7"]),
        ("X=a; X+=b; run $X", ["run", "ab"]),
        ("run $(date) `id` \"$(echo 'a)b')\"", ["run", "$(date)", "`id`", "$(echo 'a)b')"]),
        ("cat <<EOF\n--not a flag\nEOF\nrun x", ["run", "x"]),
        ("run a > log 2>&1", ["run", "a", "log", "1"]),
        ('run "a\\"b" "\\$X"', ["run", 'a"b', "$X"]),
        ("run $", ["run", "$"]),
    ],
)
def test_words(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert words(tmp_path, text)[-1] == expected


def test_the_folder_of_the_script_is_known(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/small.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    text = (
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
        'source "${DIR}/models/small.sh"\nrun ${MODEL_ARGS[@]}\n'
    )
    assert words(tmp_path, text)[-1] == ["run", "--num-layers", "2"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    words(tmp_path, f"touch {made}\nX=$(touch {made})\nrun `touch {made}` $X\n")
    assert not made.exists()


def test_what_cannot_be_known_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        'source gone.sh\nif [ "$A" ]; then\n  X=1\n  Z=1\nfi\nrun $X ${MISSING[@]}\nsource run.sh\n'
    )
    assert read_script(path).notes == [
        "run.sh:1: gone.sh is not there, and nothing of it is read",
        "run.sh:3: X is set under a condition: taken as if it held",
        "run.sh: ${MISSING[@]} is an array that nothing sets",
        "run.sh:7: run.sh sources itself; read once",
    ]


PIECES = [
    "a",
    " ",
    "\n",
    "$",
    "${",
    "}",
    "(",
    ")",
    "'",
    '"',
    "\\",
    "`",
    "#",
    "=",
    "X=(",
    "${X[@]}",
    "<<E",
    "E",
    ";",
    "if",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=30))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sh"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with suppress(ValueError):
        read_script(path)


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "run $(a", "run ${a", "run `a"])
def test_what_is_never_closed_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"run\.sh:2: .* is never closed"):
        words(tmp_path, f"# first\n{text}\n")
