"""Commands that other packages announce (rlrun/cli/main.py)."""

from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from rlrun.cli import main
from tests.cli.cli_outcome import Command
from tests.conftest import InstallPlugin

HELLO = """
def hello(name: str = "you") -> None:
    "Greet somebody."
    print(f"hello {name}")
"""
GROUP = """
import typer
app = typer.Typer(help="Talk to a cluster.")

@app.command()
def up() -> None:
    "Start it."
    print("started")

@app.command()
def down() -> None:
    "Stop it."
"""


def test_a_package_adds_a_command(rlrun: Command, install_plugin: InstallPlugin) -> None:
    install_plugin("commands", "hello", "acme_hello:hello", HELLO)
    outcome = rlrun("hello", "--name", "Ada")
    assert (outcome.code, outcome.out) == (0, "hello Ada\n")
    assert "Greet somebody." in rlrun("--help").out


def test_a_package_adds_a_group_of_commands(rlrun: Command, install_plugin: InstallPlugin) -> None:
    install_plugin("commands", "cluster", "acme_cluster:app", GROUP)
    outcome = rlrun("cluster", "up")
    assert (outcome.code, outcome.out) == (0, "started\n")


def test_a_package_does_not_replace_a_command_of_rlrun(rlrun: Command, install_plugin: InstallPlugin) -> None:
    install_plugin("commands", "recipes", "acme_recipes:hello", HELLO)
    assert "quickstart" in rlrun("recipes").out
    assert "Greet" not in rlrun("--help").out


def test_a_broken_command_breaks_no_other(rlrun: Command, install_plugin: InstallPlugin) -> None:
    install_plugin("commands", "broken", "acme_broken:command", "import no_such_module")
    outcome = rlrun("--help")
    assert outcome.code == 0
    assert "rlrun broken of acme fails to import: ModuleNotFoundError" in outcome.err


@pytest.mark.parametrize("word", ["hello", "--help"])
def test_two_packages_with_one_command_are_named(
    rlrun: Command, install_plugin: InstallPlugin, word: str
) -> None:
    install_plugin("commands", "hello", "acme_hello:hello", HELLO)
    install_plugin("commands", "hello", "other_hello:hello", HELLO, distribution="other")
    outcome = rlrun(word)
    assert outcome.code == 2
    assert "the command 'hello' is announced by" in outcome.err
    assert "acme" in outcome.err and "other" in outcome.err


def test_commands_of_packages_are_not_looked_for_where_rlrun_has_the_command(
    rlrun: Command, install_plugin: InstallPlugin
) -> None:
    install_plugin("commands", "broken", "acme_broken:command", "raise SystemError")
    outcome = rlrun("recipes")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("train", "did you mean `rlrun launch`?"),
        ("lauch", "did you mean `rlrun launch`?"),
        ("frobnicate", "commands: attempt, audit, compare, conform"),
    ],
)
def test_an_unknown_command_is_told_what_was_meant(rlrun: Command, word: str, meant: str) -> None:
    outcome = rlrun(word, "quickstart")
    assert outcome.code == 2
    assert f"there is no command {word!r}" in outcome.err
    assert meant in outcome.err


def test_the_order_of_commands_does_not_depend_on_the_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = EntryPoints(
        EntryPoint(name, "rlrun.cli:command", main.ENTRY_POINTS) for name in ("stop", "logs")
    )
    monkeypatch.setattr(main, "distribution", lambda name: SimpleNamespace(entry_points=announced))
    assert list(main.own_commands()) == ["logs", "stop"]
