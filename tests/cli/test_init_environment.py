"""`rlrun init --environment`: the spec and the game that are written."""

from pathlib import Path

import pytest

from rlrun.plugins.authoring.rollout_testing import check_environment
from rlrun.specs.local_code import ALLOW_LOCAL
from tests.cli.cli_outcome import Command

MODEL = ("--model", "package:quickstart/model", "--gpus", "0")


def test_a_game_is_written_with_a_job_that_plays_it(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    written = rlrun("init", "job.toml", "--environment", "game.py", *MODEL)
    assert (written.code, written.err) == (0, "")
    assert rlrun("validate", "job.toml").out.startswith("job.toml: valid")
    executed = check_environment(f"{tmp_path}/game.py:Game", {"high": 3}, ["1", "none", "3"])
    assert [trajectories[-1].info["turns"] for trajectories in executed[:2]] == [1, 1]


def test_the_commands_that_are_printed_next_know_their_options(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ALLOW_LOCAL, "0")  # so that it is put back after the test
    written = rlrun("init", "job.toml", "--environment", "game.py", *MODEL, "--allow-local-plugins")
    check, plan, _ = written.out.rpartition("next: ")[2].strip().split(", ")
    for command in (check, plan):
        monkeypatch.setenv(ALLOW_LOCAL, "0")
        assert rlrun(*command.split()[1:]).code == 0


def test_an_environment_of_the_user_is_named_and_left_as_it_is(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    Path("nothing.py").write_text("class Game: ...\n")
    refused = rlrun("init", "job.toml", "--environment", "nothing.py", *MODEL)
    assert "nothing.py has no class that is decorated with @rlrun.environment" in refused.err
    assert not Path("job.toml").exists() and Path("nothing.py").exists()
