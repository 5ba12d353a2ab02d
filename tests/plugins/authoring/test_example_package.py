"""The example package, built as a wheel, installed beside rlrun and used by a job's scoring."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.registry import PluginError, find, load
from rlrun.plugins.testing import sample
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.paths import RECIPES
from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec
from tests.plugins.example_packages import install, run_own_tests, wheel_of
from tests.waiting import PATIENCE

EXAMPLE = "examples/rlrun-reward-wordcount"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed from its wheel."""
    return install(EXAMPLE, tmp_path_factory.mktemp("example"))


async def test_the_installed_package_scores_samples(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    assert str(find("rewards", "wordcount")) == "rewards plugin 'wordcount' of rlrun-reward-wordcount 0.1.0"
    samples = [sample("one two three four"), sample("one two")]
    scorer = Scorer([RewardSpec.model_validate({"type": "wordcount", "target": 4})], ScoringSpec())
    await scorer.start()
    try:
        await scorer.score(samples)
    finally:
        await scorer.close()
    np.testing.assert_array_equal([one.reward for one in samples], [1, 0.5])


def test_its_own_tests_pass(site: Path) -> None:
    run_own_tests(f"{EXAMPLE}/test_wordcount.py", site)


def test_the_name_is_unknown_once_the_package_is_uninstalled() -> None:
    with pytest.raises(PluginError, match="no rewards plugin is named 'wordcount'"):
        load("rewards", "wordcount")


@pytest.mark.slow
def test_in_a_fresh_environment_from_wheel_to_uninstall(tmp_path: Path) -> None:
    """Built, installed, listed, checked, used by a spec, uninstalled; rlrun itself comes by a .pth file."""
    wheel = wheel_of(EXAMPLE, tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    folder = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    outside = [entry for entry in sys.path if entry.endswith("site-packages")]
    (folder / "rlrun.pth").write_text("\n".join([*outside, str(Path(__file__).parents[3])]) + "\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "p", "response": "one two three four", "label": ""}\n')
    spec = tmp_path / "job.toml"
    spec.write_text(SPEC.format(recipe=RECIPES / "quickstart.toml"))
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel)
    assert "wordcount" in run(python, "-m", "rlrun", "plugins", "list").stdout
    assert (
        "keeps its contract"
        in run(python, "-m", "rlrun", "plugins", "check", "rlrun-reward-wordcount").stdout
    )
    scored = run(python, "-m", "rlrun", "score", rows, "--reward", "wordcount", "--set", "target=4").stdout
    assert '"reward": 1.0' in scored
    run(python, "-m", "rlrun", "validate", spec)
    misspelt = run(python, "-m", "rlrun", "validate", spec, "--set", "rewards.0.tagret=3", code=2)
    assert "target" in misspelt.stderr
    run(python, "-m", "pip", "uninstall", "--yes", "--quiet", "rlrun-reward-wordcount")
    gone = run(python, "-m", "rlrun", "validate", spec, code=2)
    assert 'there is no reward "wordcount"' in " ".join(gone.stderr.split())


SPEC = """
extends = ["{recipe}"]
[[rewards]]
type = "wordcount"
target = 4
"""


def run(*command: str | Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "COLUMNS": "200"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
