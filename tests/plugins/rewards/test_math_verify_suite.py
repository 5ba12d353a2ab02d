"""The `math_verify` reward on the cases of the library's own test-suite, from its source distribution."""

import importlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.testing import sample
from tests.waiting import PATIENCE

MODULES = ("test_all", "test_boxed", "test_numina_cases", "test_open_thoughts")


def download(folder: Path) -> Path:
    """The library's sources, of the version that is installed."""
    package = f"math-verify=={version('math-verify')}"
    command = [sys.executable, "-m", "pip", "download", package, "--no-deps", "--no-binary", ":all:", "-q"]
    subprocess.run([*command, "-d", str(folder)], check=True, timeout=PATIENCE)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def cases(sources: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Gold and answer of every row that has both."""
    monkeypatch.syspath_prepend(sources)
    for name in [module for module in sys.modules if module.split(".")[0] == "tests"]:
        monkeypatch.delitem(sys.modules, name)
    for name in MODULES:
        for test in vars(importlib.import_module(f"tests.{name}")).values():
            for mark in getattr(test, "pytestmark", ()):
                if re.findall(r"\w+", str(mark.args[0]))[:3] == ["gold", "pred", "expected"]:
                    yield from (row[:2] for row in mark.args[1])


@pytest.mark.slow
def test_verdicts_are_the_librarys_on_its_own_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from math_verify import parse, verify

    reward = build("rewards", "math_verify", {})
    found: list[Any] = []
    for gold, answer in cases(download(tmp_path), monkeypatch):
        label = gold if "$" in gold or "\\boxed" in gold else f"${gold}$"
        expected = verify(parse(label, parsing_timeout=None), parse(answer, parsing_timeout=None))
        found.append((gold, answer, float(expected), reward.score(sample(answer, label=gold))))
    assert len(found) > 200, "the suite is laid out otherwise"
    assert [case for case in found if case[2] != case[3]] == []
