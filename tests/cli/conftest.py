"""Runs commands in this process, through the console script's own entry point."""

import sys

import pytest

from rlrun.cli import main
from tests.cli.cli_outcome import Command, Outcome


@pytest.fixture
def rlrun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Returns the command line as a function: `rlrun("validate", "job.toml")`."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("rlrun.cli.launch.end_process", sys.exit)  # a launch would end the tests' process

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rlrun", *map(str, arguments)])
        try:
            main.run()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return command
