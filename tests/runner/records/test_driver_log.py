"""No secret leaves the process by its log, whatever an exception quotes."""

import io
import logging
import re
from functools import partial
from pathlib import Path

import pytest

from rlrun.runner.host.log_lines import LineFormatter
from rlrun.runner.records.driver_log import DRIVER_LOG, SecretFormatter, current_phases, hide_secrets
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.reading.secret_references import redact_secrets

SPEC = {"rewards": [{"headers": {"Authorization": "Bearer ${env:JUDGE_KEY}"}}], "name": "${env:UNSET}"}


def test_messages_and_traces_are_written_without_secrets(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("JUDGE_KEY", "correct horse")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(SecretFormatter(partial(hide_secrets, SPEC)))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise RuntimeError("http://me:hunter2@host/x said: no correct horse")
    except RuntimeError:
        logger.exception("asked with %s and %s", "correct horse", "hf_abcdefghijklmnop1234")
    text = out.getvalue()
    assert "asked with ${env:JUDGE_KEY} and ***" in text
    assert "RuntimeError: http://me:***@host/x said: no ${env:JUDGE_KEY}" in text
    assert not any(secret in text for secret in ("correct horse", "hunter2", "hf_"))


def test_words_that_are_too_short_to_be_secrets_stay() -> None:
    assert redact_secrets("a cat sat", {"a": "${env:A}", "b": "${env:B}"}, {"A": "a", "B": ""}) == "a cat sat"


@pytest.mark.parametrize(
    ("name", "level", "beginning"),
    [
        ("rlrun.runner.records.console", logging.INFO, "console: "),
        ("rlrun.runner.engines.pool.supervisor", logging.WARNING, "WARNING supervisor: "),
        ("torch.distributed.elastic", logging.ERROR, "ERROR torch: "),
        ("root", logging.INFO, "root: "),
    ],
)
def test_lines_have_a_short_beginning(name: str, level: int, beginning: str, tmp_path: Path) -> None:
    record = logging.LogRecord(name, level, "file.py", 1, "engine %d: %s", (1, "died: again"), None)
    line = LineFormatter().format(record)
    assert re.fullmatch(rf"\d\d-\d\d \d\d:\d\d:\d\d {beginning}engine 1: died: again", line)
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    (folder.logs / DRIVER_LOG).write_text(f"{line}\n")
    assert current_phases(folder) == "engine 1: died: again"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([], "", id="nothing yet"),
        pytest.param(["run: starting"], "run: starting", id="no phase yet"),
        pytest.param(["run: starting", "starting Ray …"], "starting Ray", id="one phase"),
        pytest.param(
            ["starting Ray …", "starting the rewards …", "  starting the rewards: 4.8 s"],
            "starting Ray",
            id="one of two has ended",
        ),
        pytest.param(
            ["loading the engines …", "loading the trainer …", "  loading the trainer: 30 s so far"],
            "loading the engines, loading the trainer",
            id="two take long",
        ),
        pytest.param(["starting Ray …", "  starting Ray: 2.0 s"], "starting Ray: 2.0 s", id="all have ended"),
    ],
)
def test_the_phases_that_a_start_waits_for(tmp_path: Path, messages: list[str], expected: str) -> None:
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    lines = "".join(f"11-26 08:30:23 console: {message}\n" for message in messages)
    (folder.logs / DRIVER_LOG).write_text(lines)
    assert current_phases(folder) == expected
