"""What a terminal and a pipe see of work that takes long."""

import io

import pytest
from rich.console import Console

from rlrun.cli import output
from rlrun.cli.convert import report as convert_report
from rlrun.cli.plan import picture


def test_only_a_terminal_shows_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=60)
        monkeypatch.setattr(output, "SafeConsole", lambda stderr, console=console: console)
        with output.show_waiting("comparing layouts"):
            pass
        assert ("comparing layouts" in file.getvalue()) is terminal


def test_a_pipe_gets_a_line_every_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(convert_report.time, "perf_counter", lambda: now[0])
    with convert_report.progress(10**10, verify=False) as (written, _):
        for _ in range(70):
            written.advance(10**8)
            now[0] += 1
    assert capsys.readouterr().err.splitlines() == [
        "writing: 3.1 GB of 10 GB after 30 s",
        "writing: 6.1 GB of 10 GB after 60 s",
    ]


def test_a_narrow_terminal_folds_names_and_cuts_none() -> None:
    file = io.StringIO()
    table = output.plain_table("run", "eval/held-out/reward")
    table.add_row("3-lr-5e-05-temperature-0.7", "0.6582")
    Console(file=file, width=30).print(table)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 30
    first_column = "".join(line[:14].strip() for line in lines)
    assert "…" not in file.getvalue()
    assert "3-lr-5e-05-temperature-0.7" in first_column, file.getvalue()


def test_a_plan_in_a_narrow_terminal_cuts_no_key() -> None:
    file = io.StringIO()
    table = picture.table(
        "a plan", ("number", "from"), [("samples per prompt (n)", "rollout.samples_per_prompt")]
    )
    Console(file=file, width=40).print(table)
    assert "…" not in file.getvalue()
