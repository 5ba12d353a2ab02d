"""What is asked of a scheduler follows from the spec and its plan."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.submission.folder import Attempt, SubmissionFolder, SubmittedJob
from rlrun.runner.submission.prepare import prepare, submitted_spec
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.reading.reference import as_toml
from tests.job_folder import make_job_folder


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_job_folder(tmp_path, '[submit]\ntype = "slurm"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(**settings: Any) -> LoadedSpec:
    overrides = [f"{key.replace('__', '.')}={as_toml(value)}" for key, value in settings.items()]
    return load_checked_spec([Path("job.toml")], overrides, other_host=True)


@pytest.mark.parametrize(
    ("settings", "nodes", "cpus"),
    [
        pytest.param({}, 1, 3, id="a rank and an engine in turns"),
        pytest.param({"cluster__placement": "disaggregated"}, 1, 6, id="a rank beside an engine"),
        pytest.param({"cluster__nodes": 2, "trainer__parallel__fsdp": 2}, 2, 3, id="a rank on each node"),
        pytest.param({"submit__cpus": 48}, 1, 48, id="given"),
    ],
)
def test_nodes_and_cores_follow_from_the_plan(
    job: Path, settings: dict[str, Any], nodes: int, cpus: int
) -> None:
    loaded = load(cluster__threads=3, **settings)
    submission = prepare(loaded, SubmissionFolder(Path("runs"), "job"), job)
    assert (submission.nodes, submission.cpus, submission.gpus) == (nodes, cpus, 0)


def test_threads_must_be_given_because_the_nodes_are_not_known_here(job: Path) -> None:
    with pytest.raises(SpecError, match="the cores of the nodes are not known here"):
        prepare(load(), SubmissionFolder(Path("runs"), "job"), job)


def test_attempts_launch_the_spec_as_it_was_submitted(job: Path) -> None:
    loaded = load(cluster__threads=3, cluster__address="1.2.3.4:5", trainer__lr=1e-3)
    document = tomllib.loads(submitted_spec(loaded))
    assert document["name"] == "job"
    assert document["runs_dir"] == str(job / "runs")
    assert document["model"]["path"] == str(job / "model")
    assert document["trainer"]["lr"] == 1e-3
    assert "address" not in document["cluster"]
    assert "submit" not in document
    assert document["fault_tolerance"] == {"node_timeout": 10.0}
    (job / "again.toml").write_text(submitted_spec(loaded))
    assert load_checked_spec([job / "again.toml"]).spec.trainer == loaded.spec.trainer


def test_a_given_wait_for_nodes_is_kept(job: Path) -> None:
    document = tomllib.loads(submitted_spec(load(cluster__threads=1, fault_tolerance__node_timeout=99.0)))
    assert document["fault_tolerance"] == {"node_timeout": 99.0}


def test_a_submission_is_found_by_the_name_of_its_run(tmp_path: Path) -> None:
    folder = SubmissionFolder(tmp_path, "job")
    assert folder.read_job() is None
    folder.make()
    job = SubmittedJob(launcher="slurm", params={"partition": "low"}, id="7")
    folder.write_job(job)
    folder.add_attempt(Attempt(id="7.0", code=75, step=4))
    found = SubmissionFolder(tmp_path, "job")
    assert found.read_job() == job
    assert found.read_attempts() == [Attempt(id="7.0", code=75, step=4)]
    assert found.run.path == tmp_path / "job"
