"""Text from elsewhere is printed without effects on the terminal, by every command."""

import ast
import io
import logging
from pathlib import Path

import pytest
from rich.table import Table

import rlrun
from rlrun.runner.host.printed_text import log_text, one_line, print_text, printable
from rlrun.runner.host.rich_console import SafeConsole
from rlrun.runner.records.console import Console

HOSTILE = "a\x1b[2J\x1b]0;t\x07\x9b1m\r\x08\x7f\u202e\u2028\udcff"
SHOWN = "a\\u001b[2J\\u001b]0;t\\u0007\\u009b1m\\u000d\\u0008\\u007f\\u202e\\u2028\\udcff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(HOSTILE, SHOWN, id="hostile"),
        pytest.param("two\nlines\tand a tab", "two\nlines\tand a tab", id="lines"),
        pytest.param("ä 中 👩‍🔬 [red] :bug: \\u001b", "ä 中 👩‍🔬 [red] :bug: \\u001b", id="plain"),
    ],
)
def test_what_a_terminal_would_obey_is_written_as_an_escape(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printable(text) == shown
    print_text(text, 1, sep="|", end="!")
    assert capsys.readouterr().out == f"{shown}|1!"


def test_a_name_takes_one_line() -> None:
    assert one_line("run\nother: done\t") == "run\\u000aother: done\\u0009"


def test_a_log_has_neither_colours_nor_carriage_returns() -> None:
    assert log_text("\x1b[1;31mred\x1b[0m\r\n10%\r20%") == "red\n10%\n20%"


def test_a_table_shows_text_as_it_is() -> None:
    out = io.StringIO()
    table = Table("[red]name[/red]", "[/x]", title="[bold] :bug:")
    table.add_row(f"[red]{HOSTILE}", "[/x] :bug:")
    SafeConsole(file=out, width=200, force_terminal=True).print(table)
    text = out.getvalue()
    assert "[red]name[/red]" in text and "[bold] :bug:" in text and f"[red]{SHOWN}" in text
    assert "\x1b[2J" not in text and "\x9b" not in text and "\r" not in text


def test_the_panel_of_a_launch_shows_text_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    out = io.StringIO()
    console = Console(HOSTILE, SafeConsole(file=out, width=300, force_terminal=True))
    console.start(0, 2)
    console.say(f"[red]{HOSTILE}[/x]")
    console.step(1, {f"eval/{HOSTILE}/reward": 0.5})
    console.close()
    text = out.getvalue()
    assert f"[red]{SHOWN}[/x]" in text and f"[red]{SHOWN}[/x]" in caplog.messages
    assert "\x1b[2J" not in text and "\x1b]0;" not in text and "\x9b" not in text


NOT_A_TERMINAL = {"runner/cluster/actor.py", "runner/engines/native/__main__.py"}
"""Modules that may call `print`: a worker, into its log, and an engine that is started by itself."""


def test_every_command_prints_through_the_owner_of_printed_text() -> None:
    """`print` itself only gets JSON, whose strings are escaped, and consoles are made without markup."""
    package = Path(rlrun.__file__).parent
    rooms = [package / name for name in ("api", "cli", "converters", "models", "runner", "specs")]
    wrong = []
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        if path.relative_to(package).as_posix() in NOT_A_TERMINAL | {"runner/host/printed_text.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            is_json = bool(node.args) and ast.unparse(node.args[0]).startswith("json.dumps(")
            is_constant = bool(node.args) and "\\x1b[1;31merror" in ast.unparse(node.args[0])
            if node.func.id == "print" and not is_json and not is_constant:
                wrong.append(f"{path}:{node.lineno}")
            if node.func.id == "Terminal":
                wrong.append(f"{path}:{node.lineno}")
        has_console = "from rich.console import Console" in path.read_text()
        if has_console and path.name not in ("console.py", "rich_console.py"):
            wrong.append(str(path))
    assert wrong == []
