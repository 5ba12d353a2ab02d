"""The example algorithm, built as a wheel, installed beside rlrun and trained with."""

from pathlib import Path

import pytest

from rlrun.plugins.registry import find
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError
from tests.plugins.example_packages import install, run_own_tests
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model

EXAMPLE = "examples/rlrun-algorithm-topr"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed from its wheel."""
    return install(EXAMPLE, tmp_path_factory.mktemp("example"))


def test_a_rank_trains_with_the_installed_algorithm(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    assert str(find("algorithms", "topr")) == "algorithms plugin 'topr' of rlrun-algorithm-topr 0.1.0"
    folder = make_tiny_model(tmp_path / "model")
    spec = make_spec(folder, algorithm={"type": "topr", "cap": 2.0})
    rank = make_rank(folder, spec)
    sequences = make_sequences()
    (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
    rank.close()
    assert metrics["train/topr/weight"] == pytest.approx(1.0)
    assert metrics["train/grad_norm"] > 0


def test_its_parameters_are_checked_with_the_spec(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    broken = tmp_path / "job.toml"
    base = Path(__file__).parents[2] / "specs" / "base.toml"
    broken.write_text(f'extends = "{base}"\n[algorithm]\ntype = "topr"\ncap = 0\n')
    with pytest.raises(SpecError, match=r"job\.toml:4:7: algorithm\.cap: must be greater than 0"):
        load_checked_spec([broken])


def test_its_own_tests_pass(site: Path) -> None:
    run_own_tests(f"{EXAMPLE}/test_topr.py", site)
