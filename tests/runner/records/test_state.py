import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.run_time import RunTime
from rlrun.runner.records.state import is_alive, read_state
from tests.runner.records.states import now, state, write_state


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = state(processes={"trainer 0": 7, "engine 0": None}, scratch="/tmp/rlrun-x", metrics={"a": 0.5})
    written["run_time"] = {**RunTime(began=5.0, useful=1.0).model_dump()}
    written["engines"] = (2, 3)
    written["ranks"] = (1, 2)
    (tmp_path / "state.json").write_text(json.dumps(written))
    assert read_state(tmp_path / "state.json") == written


def test_a_run_that_has_said_nothing_has_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path / "state.json") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"{}", b"[]", b"null", b"NaN", b'{"status": "done"}', b"\xff\xfe\x00",
        b'{"pid": 1' + b"0" * 9999, b"[" * 100_000, b'{"a":' * 100_000, b" " * (5 << 20),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_state_is_named(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text)
    with pytest.raises(RunFolderError, match=r"state\.json does not hold a run's state \(.+\); move it away"):
        read_state(path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_named_at_once(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    make(path)
    with pytest.raises(RunFolderError, match="does not hold a run's state"):
        read_state(path)


WRONG: dict[str, list[Any]] = {
    "pid": [0, -1, True, 2**22 + 1, 2**63, 1.5, math.nan, math.inf, "1", [1], {"a": 1}, None],
    "start_ticks": ["1", 0.5, None],
    "host": [1, None, ["a"]],
    "boot_id": [1, None],
    "status": ["alive", 1, None, ["running"]],
    "started": ["yesterday", 0, None, "2026-01-01T00:00:00", "0001-01-01T00:00:00+00:00", ["2026-01-01"]],
    "updated": ["", {}, "9999-12-31T23:59:59-12:00"],
    "step": [-1, "1", 1.5, math.nan, None, True],
    "steps": [-1, "1", [], math.inf],
    "metrics": [[], None, {"a": "1"}, {"a": math.nan}, {"a": [1]}, {"a": {"b": 1}}],
    "error": [1, ["a"], {}],
    "processes": [[], None, {"a": "1"}, {"a": 0}, {"a": -1}, {"a": [1]}, {"a": 1.5}],
    "run_time": [1, [], {}, {"began": -1.0}, {"began": 1.0, "useful": math.nan}],
    "scratch": [1, ["/"], {}],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_a_value_of_a_wrong_kind_is_named(key: str, value: Any, tmp_path: Path) -> None:
    write_state(tmp_path, **{key: value})
    with pytest.raises(RunFolderError, match=rf"does not hold a run's state \({key}"):
        read_state(tmp_path / "state.json")


def test_a_terminal_does_not_obey_what_a_state_says(tmp_path: Path) -> None:
    write_state(tmp_path, error="\x1b]0;gone\x07one\ntwo", host="a\x1b[2Jb")
    read = read_state(tmp_path / "state.json")
    assert (read["error"], read["host"]) == ("\\u001b]0;gone\\u0007one\ntwo", "a\\u001b[2Jb")


ELSEWHERE = [{"host": "elsewhere"}, {"boot_id": "0"}, {"pid_namespace": 1}, {"boot_id": ""}]


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        ({}, True),
        ({"status": "done"}, False),
        ({"start_ticks": 1}, False),  # the process id was given to another process
        ({"start_ticks": 0, "pid": 1}, False),  # nothing says which process it was
    ],
)
def test_a_run_is_alive_while_the_very_process_is(changes: dict[str, object], alive: bool) -> None:
    assert is_alive(state(**changes)) is alive


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize(
    ("seconds", "alive"),
    [(-60, True), (-400, False), (4000, False)],
    ids=["lately", "its host is gone", "later"],
)
def test_a_run_elsewhere_is_alive_while_its_state_is_new(
    place: dict[str, object], seconds: float, alive: bool
) -> None:
    assert is_alive(state(**place, updated=now(seconds))) is alive


def test_a_run_without_a_state_is_not_alive() -> None:
    assert not is_alive({})
