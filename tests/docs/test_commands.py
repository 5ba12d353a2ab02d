"""Every command in the documentation's blocks exists, and those of rlrun that need no job are run."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rlrun.cli.main import make_app
from rlrun.specs.local_code import ALLOW_LOCAL
from tests.docs.pages import PAGES, ROOT, Page

RUN = {"validate", "plan", "init", "schema", "recipes", "explain", "plugins list", "plugins show"}
"""Commands that are run: they start no job and read no run. All others are parsed."""
NOT_RUN = {
    "validate quickstart --set model.path=/models/mistral": "a model of the reader's",
}
TRACKED = {"rlrun", "tests", "docs", "examples", "packages", "benchmarks", "scripts"}
"""Folders of the repository; a path that begins with another name is the user's."""
OWN_FILE = ["init", "--model", "package:quickstart/model", "--task", "chain_sum"]
"""Writes the spec that a page calls job.toml or first.toml."""

OWN_REWARD = "import rlrun\n\n\n@rlrun.reward\ndef exact(sample) -> float:\n    return 1.0\n"
"""The file that a page gives `--reward`."""
OWN_ROWS = "question,answer\n1 + 1?,2\n"
"""The file of rows that a page gives `--data`."""


def shown(page: Page) -> Iterator[str]:
    """Yields the command lines in a page's blocks, without comments and without what follows a pipe."""
    for language in ("", "sh", "bash"):
        for code in page.blocks(language):
            for line in code.replace("\\\n", " ").splitlines():
                if re.match(r"(rlrun|make|python|\.venv/bin/\w+) ", line):
                    yield re.split(r" #|  +| && |; | \| ", line)[0]


COMMANDS = [(path.name, command) for path in PAGES for command in dict.fromkeys(shown(Page(path)))]
RLRUN = [(page, command.removeprefix("rlrun ")) for page, command in COMMANDS if command.startswith("rlrun ")]


def rows(commands: list[tuple[str, str]]) -> pytest.MarkDecorator:
    ids = [f"{page}: {command}" for page, command in commands]
    return pytest.mark.parametrize("command", [command for _, command in commands], ids=ids)


@cache
def application() -> Any:
    return typer.main.get_command(make_app([]))


def parse(words: list[str]) -> str:
    """Returns the command's full name; raises an error of usage as the command line does."""
    command, name = application(), ""
    context = command.make_context("rlrun", words)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        word, command, rest = command.resolve_command(context, rest)
        context = command.make_context(word, rest, parent=context)
        name = f"{name} {word}".strip()
    return name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_can_be_copied_whole(path: Path) -> None:
    """A command has a block of its own, without a prompt, so that copying it copies no output."""
    blocks = Page(path).blocks("") + Page(path).blocks("console")
    assert [line for code in blocks for line in code.splitlines() if line.startswith("$ ")] == []


@rows(RLRUN)
def test_rlrun_accepts_it(command: str) -> None:
    assert parse(shlex.split(command))


@rows(RLRUN)
def test_it_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if parse(words) not in RUN or command in NOT_RUN:
        return
    monkeypatch.chdir(tmp_path)
    if "--data" in words:
        Path(words[words.index("--data") + 1]).write_text(OWN_ROWS)
    if "--reward" in words:
        monkeypatch.setenv(ALLOW_LOCAL, "1")
        Path(words[words.index("--reward") + 1].partition(":")[0]).write_text(OWN_REWARD)
    for word in words[1:]:
        if word.endswith(".toml") and words[0] != "init":
            run([*OWN_FILE, word])
    run(words)


@rows(COMMANDS)
def test_files_modules_and_targets_exist(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
    if program == "python" and words[0] == "-m":
        assert find_spec(words[1])
    for word in words:
        if "/" in word and word.partition("/")[0] in TRACKED:
            assert (ROOT / word).exists(), word


def run(words: list[str]) -> None:
    result = CliRunner().invoke(make_app(words), words)
    assert result.exit_code == 0, (result.output, result.exception)
