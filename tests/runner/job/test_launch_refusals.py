"""A launch that is refused starts nothing, claims no name and leaves the run that it names as it was."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from rlrun.converters.folders.checksums import checksum, checksums_text
from rlrun.models import hub
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.cluster.host_gpus import gpu_findings
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles, fetch_model
from rlrun.runner.job import launch as launching
from rlrun.runner.job import model_fetch
from rlrun.runner.job.launch import launch
from rlrun.runner.planning.planned_model import resolve_on_this_host
from rlrun.runner.records.lock import make_lock
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.problems.codes import Code
from rlrun.specs.reading.loading import LoadedSpec
from tests.job_folder import make_job_folder
from tests.runner.records.states import state
from tests.tiny_models import make_tiny_model


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec, rows and a tiny model; nothing that a launch would start may be started."""
    make_job_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching.asyncio, "run", lambda work: pytest.fail("the launch was not refused"))
    return tmp_path


def load(*overrides: str) -> LoadedSpec:
    return load_checked_spec([Path("job.toml")], overrides)


@pytest.fixture
def run(job: Path) -> RunFolder:
    """An interrupted run with a checkpoint of step 2."""
    folder = RunFolder(job / "runs" / "job")
    folder.path.mkdir(parents=True)
    folder.make()
    folder.write_state(state(status="interrupted", step=2, steps=4))
    loaded = load()
    folder.lock.write_text(json.dumps(make_lock(loaded, fetch_model(loaded.spec.model))))
    files = {"driver.json": b'{"progress": {}, "data": {}}', "trainer/weights": b"bytes"}
    checkpoint = folder.checkpoints / "step-2"
    for name, content in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(content)
    digests = {name: checksum(content) for name, content in files.items()}
    (checkpoint / "checksums.txt").write_text(checksums_text(digests))
    return folder


def change_model(run: RunFolder) -> None:
    Path("model/README.md").write_text("another model")


def lose_model(run: RunFolder) -> None:
    shutil.rmtree("model")


def lose_file(run: RunFolder) -> None:
    (run.checkpoints / "step-2" / "trainer" / "weights").unlink()


def change_file(run: RunFolder) -> None:
    (run.checkpoints / "step-2" / "trainer" / "weights").write_bytes(b"other")


def empty_driver(run: RunFolder) -> None:
    (run.checkpoints / "step-2" / "driver.json").write_text("")


def lose_checksums(run: RunFolder) -> None:
    (run.checkpoints / "step-2" / "checksums.txt").write_text("nothing")


@pytest.mark.parametrize(
    ("harm", "overrides", "message"),
    [
        pytest.param(None, ["seed=7"], "seed", id="another seed"),
        pytest.param(None, ["rollout.temperature=0.5", "data.shuffle=false"], "data.shuffle", id="data"),
        pytest.param(None, ["trainer.steps=1"], "has done 2 steps, and the spec asks", id="fewer steps"),
        pytest.param(change_model, [], "changed since the run began", id="another model"),
        pytest.param(lose_model, [], "model", id="no model"),
        pytest.param(lose_file, [], "step-2/trainer/weights is damaged: it is missing", id="lost file"),
        pytest.param(change_file, [], "step-2/trainer/weights is damaged: its checksum", id="changed file"),
        pytest.param(empty_driver, [], "step-2/driver.json is damaged", id="empty file"),
        pytest.param(lose_checksums, [], "checksums.txt is damaged", id="checksums"),
    ],
)
def test_a_refused_resume_leaves_the_run_as_it_was(
    run: RunFolder, harm: Callable[[RunFolder], None] | None, overrides: list[str], message: str
) -> None:
    if harm is not None:
        harm(run)
    before = run.state.read_bytes()
    with pytest.raises(ValueError, match=message):  # the command ends with exit code 2
        launch(load(*overrides), resume=True)
    assert run.state.read_bytes() == before
    assert not (run.logs / "driver.log").exists()


def test_a_resume_that_can_continue_is_not_refused(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(work: object) -> int:
        work.close()  # type: ignore[attr-defined]
        return 7

    monkeypatch.setattr(launching.asyncio, "run", begin)
    assert launch(load("trainer.lr=0.1", "trainer.steps=2"), resume=True) == 7


def test_a_run_that_is_done_starts_nothing(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_state(state(status="done", step=4, steps=4))
    before = run.state.read_bytes()
    assert launch(load(), resume=True) == 0
    assert capsys.readouterr().err == "job is done: 4 of 4 steps; raise trainer.steps to go on\n"
    assert run.state.read_bytes() == before


@pytest.fixture
def deaf_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            huggingface_hub, "hf_hub_url", lambda name, file, revision: f"{address}/{name}/{file}"
        )
        monkeypatch.setattr(hub, "_TIMEOUT", 0.05)
        yield address


@pytest.mark.parametrize(
    "override",
    ['model.path="acme/model"', 'teacher.path="acme/model"'],
    ids=["policy", "teacher"],
)
def test_a_hub_that_does_not_answer_is_named_and_the_name_stays_free(
    job: Path, deaf_hub: str, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ['algorithm.type="on_policy_distillation"'] if "teacher" in override else []
    with pytest.raises(
        ValueError, match=f"{deaf_hub} cannot be reached .*(no answer within 0.05 s|timed out)"
    ):
        launch(load(override, *others))
    assert f"looking for acme/model at {deaf_hub}" in capsys.readouterr().err
    assert not (job / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "available", "message"),
    [
        ([], 0, None),
        (["cluster.gpus_per_node=8"], 8, None),
        (["cluster.gpus_per_node=8"], 0, "the job needs 8 GPUs, and this host has 0"),
        (["cluster.gpus_per_node=8"], 7, "the job needs 8 GPUs, and this host has 7"),
        (["cluster.gpus_per_node=8", 'cluster.address="10.0.0.1:6379"'], 0, None),
    ],
)
def test_gpus_are_counted_where_ray_is_started(
    job: Path, overrides: list[str], available: int, message: str | None
) -> None:
    layout = ["trainer.parallel.fsdp=8", "engine.count=8"] if overrides else []
    findings = list(gpu_findings(resolve_on_this_host(load(*overrides, *layout).spec).spec, available))
    assert [finding.message.partition(" (")[0] for finding in findings] == ([message] if message else [])


def test_missing_gpus_are_told_at_their_key_before_the_name_is_claimed(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun.runner.cluster.host_gpus.gpus_here", lambda: 0)
    with pytest.raises(ValueError) as refused:
        launch(load("cluster.gpus_per_node=8", "trainer.parallel.fsdp=8", "engine.count=8"))
    [problem] = refused.value.problems  # type: ignore[attr-defined]
    assert (problem.key, problem.code) == ("cluster.gpus_per_node", Code.CLUSTER)
    assert not (job / "runs").exists()


def test_a_teacher_with_other_tokens_is_refused_with_the_key_that_takes_it(job: Path) -> None:
    make_tiny_model(job / "teacher", vocab=300)
    overrides = ['algorithm.type="gkd"', f'teacher.path="{job}/teacher"']
    with pytest.raises(LaunchRefused, match=r'does not have the policy.s token .* teacher.tokenizer = "own"'):
        launch(load(*overrides))
    assert not (job / "runs").exists()


def test_models_beside_the_policy_are_fetched_at_their_revisions(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def fetch_files(key: str, path: str, revision: str | None, **others: object) -> ModelFiles:
        asked[key] = (path, revision)
        return policy

    overrides = ["algorithm.type=ppo", 'algorithm.kl={in_loss={type="k3", coef=0.1}}']
    overrides += ["reference.path=org/first", "reference.revision=v1", "critic.path=org/values"]
    spec = load(*overrides, "critic.revision=abc").spec
    policy = fetch_model(spec.model)
    monkeypatch.setattr(model_fetch, "fetch_files", fetch_files)
    models = model_fetch.fetch_models(spec)
    assert asked == {"reference.path": ("org/first", "v1"), "critic.path": ("org/values", "abc")}
    assert models.reference is models.critic is policy
