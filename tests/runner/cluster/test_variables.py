import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.runner.cluster.variables import variables_of

CHILD = """
import os, sys
from rlrun.runner.cluster.actor import Actor
Actor(sys.argv[1], {"TOKEN": "secret of a test"})
print(os.environ["TOKEN"] == "secret of a test")
"""


def test_secrets_are_apart_from_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "abc")
    given = {"NCCL_DEBUG": "WARN", "TOKEN": "${env:OURS}", "HEADER": "Bearer ${env:OURS}"}
    assert variables_of(given) == ({"NCCL_DEBUG": "WARN"}, {"TOKEN": "abc", "HEADER": "Bearer abc"})


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ValueError, match="NOWHERE_SET is not set"):
        variables_of({"TOKEN": "${env:NOWHERE_SET}"})


def test_a_process_has_its_secrets_before_anything_else_and_prints_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", CHILD, str(log)], check=True)
    assert log.read_text().split() == ["True"]
