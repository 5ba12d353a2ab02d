"""The packages under `packages/`: what they declare and import, and the error where one is not installed."""

import ast
import zipfile
from pathlib import Path

import pytest
import tomli

from rlrun.cli.main import run
from rlrun.plugins import kinds
from rlrun.plugins.registry import PluginError, load
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError
from tests.plugins.example_packages import ROOT, wheel_of

CURE = (
    "it is in the package rlrun-acme, which is not installed; "
    "in a clone of rlrun's repository: pip install ./packages/rlrun-acme"
)


@pytest.fixture
def missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a package to the known ones that is not installed: it has the reward `acme_words`."""
    packages = {**kinds.PACKAGES, ("rewards", "acme_words"): "rlrun-acme"}
    monkeypatch.setattr(kinds, "PACKAGES", packages)


def test_the_table_lists_what_the_packages_declare() -> None:
    declared = {}
    for file in ROOT.glob("packages/*/pyproject.toml"):
        project = tomli.loads(file.read_text("utf-8"))["project"]
        for group, points in project["entry-points"].items():
            declared |= {(group.removeprefix("rlrun."), name): project["name"] for name in points}
    assert declared == kinds.PACKAGES


@pytest.mark.usefixtures("missing_package")
def test_a_plugin_of_a_missing_package_is_refused_with_the_way_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as loaded:
        load("rewards", "acme_words")
    assert str(loaded.value) == f"no rewards plugin is named 'acme_words': {CURE}"
    assert problem_of("acme_words", tmp_path) == ('there is no reward "acme_words"', CURE)


@pytest.mark.usefixtures("missing_package")
def test_a_misspelt_plugin_of_a_missing_package_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="did you mean 'acme_words'"):
        load("rewards", "acme_wrods")
    assert problem_of("acme_wrods", tmp_path)[1].startswith('did you mean "acme_words"?')


@pytest.mark.usefixtures("missing_package")
def test_plugins_show_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rlrun", "plugins", "show", "acme_words"])
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        run()
    assert CURE in " ".join(capsys.readouterr().err.split())


def test_plugin_packages_import_nothing_of_rlrun_but_the_plugin_api() -> None:
    for folder in ("packages", "examples"):
        for file in (ROOT / folder).glob("rlrun-*/**/*.py"):
            for module in modules_imported_by(file):
                assert not module.startswith("rlrun.") or module.startswith("rlrun.plugins."), (file, module)


def test_the_wheel_of_ifbench_has_its_word_lists(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_of("packages/rlrun-ifbench", tmp_path)) as wheel:
        assert {"rlrun_ifbench/verbs.txt", "rlrun_ifbench/word_lists.txt"} <= set(wheel.namelist())
        points = wheel.read("rlrun_ifbench-0.1.0.dist-info/entry_points.txt").decode()
    assert "[rlrun.rewards]\nifbench = rlrun_ifbench.reward:Ifbench" in points


def problem_of(reward: str, folder: Path) -> tuple[str, str]:
    """Returns message and cure of the only problem of a spec with this reward."""
    spec = folder / "job.toml"
    spec.write_text(f'extends = ["{RECIPES / "quickstart.toml"}"]\n[[rewards]]\ntype = "{reward}"\n')
    with pytest.raises(SpecError) as caught:
        load_checked_spec([spec])
    [problem] = caught.value.problems
    assert problem.key == "rewards.0.type"
    return problem.message, problem.cure or ""


def modules_imported_by(file: Path) -> set[str]:
    """Returns the full names of the modules that a source file imports, also inside its functions."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules
