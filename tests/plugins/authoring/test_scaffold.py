"""`rlrun plugins new` writes packages that pass their own checks; `check` says what is wrong with others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from rlrun.plugins.authoring.scaffold import TEMPLATES, write_package
from rlrun.plugins.kinds import METHODS
from tests.conftest import InstallPlugin
from tests.waiting import PATIENCE

CODE = "from rlrun.cli.main import run; import sys; sys.argv = ['rlrun', *sys.argv[1:]]; run()"


def announce(folder: Path) -> None:
    """As `pip install -e` would: the package's folder is importable and its entry points are announced."""
    project = tomli.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(points))


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
    )


def test_a_name_that_another_plugin_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rewards plugin 'math' of rlrun .* has that name"):
        write_package("rewards", "math", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_there_is_a_scaffold_for_every_kind() -> None:
    assert TEMPLATES.keys() == METHODS.keys()


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_scaffold_passes_its_own_checks(kind: str, tmp_path: Path) -> None:
    folder = write_package(kind, "my_own", tmp_path)
    announce(folder)
    checked = run(folder, "-c", CODE, "plugins", "check", folder.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{kind} my_own: keeps its contract" in checked.stdout
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "110", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ruff.returncode == 0, ruff.stdout


def test_pytest_checks_a_package(tmp_path: Path) -> None:
    folder = write_package("rewards", "my_own", tmp_path)
    announce(folder)
    done = run(folder, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rlrun-check", folder.name, ".")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", ["My", "my-own", "1st", "class", "a b", ""])
def test_a_name_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a valid plugin name"):
        write_package("rewards", name, tmp_path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_package("rewards", "mine", tmp_path)
    with pytest.raises(ValueError, match="exists already"):
        write_package("rewards", "mine", tmp_path)


BROKEN = """
    from pydantic import BaseModel, ConfigDict

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Reward:
        Params = Params
        api_version = 1

        def __init__(self, params):
            self.count = 0

        def score(self, sample):
            self.count += 1
            return BAD
"""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("self.count * id(self)", "differently the second time"),
        ("float('nan')", "not a finite number"),
        ("'high'", "not a finite number"),
        ("sample.rewards.update(x=1) or 1.0", "changes the sample it scores"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_check_says_what_a_reward_does_wrong(install_plugin: InstallPlugin, bad: str, message: str) -> None:
    folder = install_plugin("rewards", "broken", "acme_broken:Reward", BROKEN.replace("BAD", bad))
    checked = run(folder, "-c", CODE, "plugins", "check", "acme")
    assert checked.returncode == 2
    assert f"rewards broken: {message}" in checked.stdout or message in checked.stdout
    assert "1 plugin of acme cannot be used" in checked.stderr


def test_check_names_the_packages_there_are(tmp_path: Path) -> None:
    checked = run(tmp_path, "-c", CODE, "plugins", "check", "no-such-package")
    assert checked.returncode == 2
    assert "no installed package 'no-such-package' announces plugins; those that do: rlrun" in " ".join(
        checked.stderr.split()
    )
