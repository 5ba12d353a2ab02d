"""Plugins are found by name without being imported, and what is wrong with one is said with its owner."""

import json
import subprocess
import sys

import pytest

from rlrun.plugins import registry
from rlrun.plugins.registry import PluginError, build, entries, find, load, names
from tests.conftest import InstallPlugin
from tests.waiting import PATIENCE

GOOD = """
    from pydantic import BaseModel, ConfigDict, Field

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")
        target: int = Field(default=3, ge=1)
        token: str = ""

    class Reward:
        Params = Params
        api_version = 1

        def __init__(self, params):
            if params.target == 13:
                raise RuntimeError("unlucky")
            self.params = params

        def score(self, sample):
            return 1.0
"""


def test_a_plugin_of_another_distribution_is_listed_loaded_and_built(install_plugin: InstallPlugin) -> None:
    install_plugin("rewards", "words", "acme_words:Reward", GOOD)
    assert "words" in names("rewards")
    assert str(find("rewards", "words")) == "rewards plugin 'words' of acme 1.0"
    assert "acme_words" not in sys.modules
    assert load("rewards", "words").__name__ == "Reward"
    assert build("rewards", "words", {"target": 5}).params.target == 5


def test_a_plugin_disappears_with_its_distribution(
    install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install_plugin("rewards", "words", "acme_words:Reward", GOOD)
    assert "words" in names("rewards")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    with pytest.raises(PluginError, match="no rewards plugin is named 'words'"):
        load("rewards", "words")


def test_listing_imports_no_plugin() -> None:
    code = (
        "import sys, json; from rlrun.plugins.kinds import METHODS; from rlrun.plugins.registry import names;"
        "found = [names(kind) for kind in METHODS]; print(json.dumps(list(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    modules = json.loads(out.stdout)
    assert not {"torch", "ray", "transformers", "reasoning_gym"} & set(modules)
    assert not [name for name in modules if name.startswith("rlrun.plugins.rewards.")]


@pytest.mark.parametrize("kind", registry.METHODS)
def test_every_plugin_of_ours_can_be_loaded(kind: str) -> None:
    for entry in entries(kind):
        plugin = load(kind, entry.name)
        assert plugin.__doc__ and plugin.Params.__doc__
        assert plugin.Params.__module__ == plugin.__module__, "its parameters stand beside it"


def test_an_unknown_name_is_answered_with_the_nearest_and_the_installed() -> None:
    with pytest.raises(PluginError, match="named 'maht'; did you mean 'math'") as caught:
        load("rewards", "maht")
    assert "installed: " in str(caught.value)
    assert "exact_match" in str(caught.value)


@pytest.mark.parametrize("backport", [False, True], ids=["Python's own", "importlib_metadata"])
def test_remains_of_an_interrupted_uninstall_are_not_a_distribution(
    install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch, backport: bool
) -> None:
    folder = install_plugin("rewards", "words", "acme_words:Reward", GOOD)
    (folder / "acme-1.0.dist-info" / "METADATA").unlink()
    if backport:  # it answers for Python's own where anything imports it
        import importlib_metadata

        monkeypatch.setattr("sys.meta_path", [importlib_metadata.MetadataPathFinder(), *sys.meta_path])
    assert "words" not in names("rewards")
    with pytest.raises(PluginError, match="no installed package 'acme' announces plugins"):
        registry.entries_of("acme")


@pytest.mark.parametrize(
    ("source", "told"),
    [("import acme_grader", "; pip install 'acme\\[gpu\\]'$"), ("import acme_graders", "'acme_graders'$")],
)
def test_the_extra_that_has_a_missing_package_is_named(
    install_plugin: InstallPlugin, source: str, told: str
) -> None:
    folder = install_plugin("rewards", "words", "acme_words:Reward", source)
    with (folder / "acme-1.0.dist-info" / "METADATA").open("a") as file:
        file.write("Requires-Dist: acme-grader>=2; extra == 'gpu'\n")
    with pytest.raises(PluginError, match=told):
        load("rewards", "words")


def test_a_name_announced_twice_is_refused_naming_both(install_plugin: InstallPlugin) -> None:
    install_plugin("rewards", "math", "acme_math:Reward", GOOD)
    with pytest.raises(
        PluginError, match=r"'math' is announced by acme 1\.0 \(acme_math:Reward\) and rlrun .*uninst"
    ):
        load("rewards", "math")
    assert names("rewards").count("math") == 1
    assert load("rewards", "exact_match")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", r"fails to import: ModuleNotFoundError: .*no_such_module"),
        ("def broken(:", "fails to import: SyntaxError"),
        ("raise RuntimeError('boom')", "fails to import: RuntimeError: boom"),
        ("raise SystemExit(0)", "fails to import: SystemExit: 0"),
        ("", "fails to import: AttributeError: .*Reward"),
        ("Reward = 3", "is not a class"),
        (GOOD.replace("api_version = 1", ""), "does not say which api_version it is for; this rlrun has 1"),
        (GOOD.replace("api_version = 1", "api_version = 99"), "has api_version 99, .*; upgrade rlrun"),
        (GOOD.replace("Params = Params", ""), "has no pydantic model named Params"),
        (GOOD.replace('extra="forbid"', ""), "would ignore misspelt parameters"),
        (
            GOOD.replace("def score", "def grade"),
            "needs a method score or score_group that takes 1 arguments beside self",
        ),
        (
            GOOD.replace("(self, sample)", "(self, sample, label)"),
            "needs a method score or score_group that takes 1",
        ),
        (GOOD.replace("(self, sample)", "(sample)"), "needs a method score or score_group that takes 1"),
        (GOOD.replace("(self, params)", "(self)"), "needs a method __init__ that takes 1"),
    ],
)
def test_a_broken_plugin_is_named_with_its_owner_and_the_cause(
    install_plugin: InstallPlugin, source: str, message: str
) -> None:
    install_plugin("rewards", "words", "acme_words:Reward", source)
    with pytest.raises(
        PluginError, match=rf"rewards plugin 'words' of acme 1\.0 \(acme_words:Reward\) {message}"
    ):
        load("rewards", "words")
    assert load("rewards", "math")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"target": 0}, "target: must be at least 1, found 0"),
        ({"target": "x", "goal": 1}, r"target: .*; goal: unknown key \(takes: target, token\)"),
        ({"tokn": "x"}, r"tokn: unknown key \(did you mean `token`\?\)"),
        ({"target": 13}, "cannot start: RuntimeError: unlucky"),
        ({"token": "${env:RLRUN_TEST_UNSET}"}, "the environment variable RLRUN_TEST_UNSET is not set"),
    ],
)
def test_wrong_parameters_name_the_plugin_and_each_key(
    install_plugin: InstallPlugin, params: dict[str, object], message: str
) -> None:
    install_plugin("rewards", "words", "acme_words:Reward", GOOD)
    with pytest.raises(PluginError, match=rf"'words' of acme 1\.0:? {message}"):
        build("rewards", "words", params)


def test_secrets_are_looked_up_when_a_plugin_is_made(
    install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin("rewards", "words", "acme_words:Reward", GOOD)
    monkeypatch.setenv("ACME_TOKEN", "s3cret")
    assert build("rewards", "words", {"token": "${env:ACME_TOKEN}"}).params.token == "s3cret"
    with pytest.raises(
        PluginError, match=r"target: the value of \$\{env:ACME_TOKEN\} is not valid"
    ) as caught:
        build("rewards", "words", {"target": "${env:ACME_TOKEN}"})
    assert "s3cret" not in str(caught.value)
