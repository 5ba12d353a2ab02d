"""What trackers leave in the run folder."""

import os
import sqlite3
import urllib.request
from pathlib import Path

import orjson
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.plugins.registry import PluginError, build, names
from rlrun.plugins.testing import check_tracker
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True, scope="module")
def trackio_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Trackio keeps its database; it asks once, when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    os.environ["TRACKIO_DIR"] = str(folder)
    return folder


PARAMS = {"wandb": {"mode": "offline"}, "prometheus": {"port": 0}}


@pytest.mark.parametrize("name", names("trackers"))
def test_every_tracker_keeps_the_contract(name: str, tmp_path: Path) -> None:
    if name in {"wandb", "mlflow", "trackio"}:
        package = pytest.importorskip(name)
    check_tracker(name, PARAMS.get(name, {}), str(tmp_path))
    if name == "wandb":
        package.teardown()  # its process may still write when a run has ended
        [run_id] = (tmp_path / "wandb-id.txt").read_text().split()
        runs = list((tmp_path / "wandb").glob("offline-run-*"))
        assert runs and all(run_id in path.name for path in runs), "a resumed run goes on with its id"
        tables = [orjson.loads(file.read_bytes()) for file in tmp_path.rglob("media/table/*.table.json")]
        assert [(table["columns"], table["data"]) for table in tables] == [
            (["id", "reward"], [["0-0", 1.0], ["0-1", None]])
        ] * 2, "one file for equal tables of a launch"
        records = [path.read_bytes() for path in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")]
        assert records and all(b"rlrun: kl_growth" in record for record in records), (
            "each launch sends alerts"
        )


def test_prometheus_finds_the_newest_metrics(tmp_path: Path) -> None:
    tracker = build("trackers", "prometheus", {"port": 0})
    tracker.start(str(tmp_path), 'my "run"', {})
    try:
        tracker.log(1, {"rollout/reward/mean": 0.25, "train/loss": float("nan")})
        tracker.log(2, {"train/kl-x": float("inf")})
        with urllib.request.urlopen(tracker.url, timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        rebound = urllib.request.Request(tracker.url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=PATIENCE)
    finally:
        tracker.close()
    assert 'rlrun_rollout_reward_mean{run="my \\"run\\""} 0.25' in lines
    assert 'rlrun_train_loss{run="my \\"run\\""} NaN' in lines
    assert 'rlrun_train_kl_x{run="my \\"run\\""} +Inf' in lines
    assert 'rlrun_step{run="my \\"run\\""} 2.0' in lines
    assert lines[0] == "# TYPE rlrun_rollout_reward_mean gauge"


def test_tensorboard_holds_every_point_also_of_a_resumed_run(tmp_path: Path) -> None:
    check_tracker("tensorboard", {"folder": "events"}, str(tmp_path))
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("train/loss")]
    assert points == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]


def test_mlflow_holds_every_point_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    check_tracker("mlflow", {"experiment": "sums"}, str(tmp_path))
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("sums")
    [run] = client.search_runs([experiment.experiment_id])
    points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/loss")]
    assert points == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert run.data.params == {"name": "run"}
    assert "rollout/reward" not in run.data.metrics, "it was no number"
    [artifact] = (tmp_path / "mlruns").rglob("samples/step-2.json")
    table = {"columns": ["id", "reward"], "data": [["0-0", 1.0], ["0-1", None]]}
    assert orjson.loads(artifact.read_bytes()) == table


def test_trackio_holds_every_point_of_a_run_and_of_its_resumption(
    tmp_path: Path, trackio_folder: Path
) -> None:
    pytest.importorskip("trackio")
    check_tracker("trackio", {"project": "sums"}, str(tmp_path))
    with sqlite3.connect(trackio_folder / "sums.db") as database:
        points = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    name = (tmp_path / "trackio-name.txt").read_text().strip()
    logged = [(run, step, orjson.loads(metrics)) for run, step, metrics in points]
    points = [entry for entry in logged if "train/loss" in entry[2]]
    assert points == [(name, step, {"train/loss": 1 / (step + 1)}) for step in range(3)]
    tables = [metrics["samples"]["_value"] for _, _, metrics in logged if "samples" in metrics]
    assert tables == [[{"id": "0-0", "reward": 1.0}, {"id": "0-1", "reward": None}]] * 3
    with sqlite3.connect(trackio_folder / "sums.db") as database:
        alerts = database.execute("SELECT run_name, step, title, level FROM alerts ORDER BY step").fetchall()
    assert alerts == [(name, step, "kl_growth", "warn") for step in range(3)]


def test_trackio_shows_samples_as_conversations(tmp_path: Path, trackio_folder: Path) -> None:
    pytest.importorskip("trackio")
    chat = [{"role": "system", "content": "be short"}, {"role": "user", "content": "3+3"}]
    rows = [
        ["0-0", "2+2", "4", 1.0],
        ["0-1", orjson.dumps(chat).decode(), "6", None],
        ["0-2", "[1]", "", 0.5],
    ]
    tracker = build("trackers", "trackio", {"project": "chats"})
    tracker.start(str(tmp_path), "run", {})
    tracker.log_table(1, "samples", ("id", "prompt", "response", "reward"), rows)
    tracker.close()
    with sqlite3.connect(trackio_folder / "chats.db") as database:
        query = "SELECT key, step, messages, metadata FROM traces ORDER BY trace_index"
        traces = database.execute(query).fetchall()
    assert {(key, step) for key, step, _, _ in traces} == {("samples/traces", 1)}
    found = [(orjson.loads(messages), orjson.loads(metadata)) for _, _, messages, metadata in traces]
    plain = [[{"role": "user", "content": text}] for text in ("2+2", "[1]")]
    answers = [{"role": "assistant", "content": text} for text in ("4", "6", "")]
    assert [messages for messages, _ in found] == [
        [*plain[0], answers[0]], [*chat, answers[1]], [*plain[1], answers[2]]
    ]  # fmt: skip
    assert [metadata for _, metadata in found] == [
        {"id": "0-0", "reward": 1.0}, {"id": "0-1", "reward": None}, {"id": "0-2", "reward": 0.5}
    ]  # fmt: skip


def test_metrics_go_to_one_trackio() -> None:
    with pytest.raises(PluginError, match="set space or server, not both"):
        build("trackers", "trackio", {"space": "me/runs", "server": "http://localhost:7860"})
