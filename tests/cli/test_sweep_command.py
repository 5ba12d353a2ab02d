"""`rlrun sweep`: what it refuses, the list of trials, and the table of a sweep on disk."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlrun.api.jobs import load
from rlrun.api.sweeps import Sweep
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.sweeps.run_sweep import LaunchArguments
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.sweeps.trials import Trial, trial_of
from rlrun.specs.reading.loading import LoadedSpec
from tests.cli.cli_outcome import Command
from tests.runner.records.states import write_state

BASE = Path(__file__).parents[1] / "specs" / "base.toml"
METRIC = "rollout/reward/mean"


def test_a_plan_lists_the_trials(rlrun: Command) -> None:
    keys = ["--sweep", "trainer.lr=1e-6,1e-5", "--sweep", "seed={ min = 0, max = 1, count = 2 }"]
    outcome = rlrun("sweep", "plan", BASE, *keys)
    assert outcome.out.splitlines() == [
        "0-lr-1e-06-seed-0",
        "1-lr-1e-06-seed-1",
        "2-lr-1e-05-seed-0",
        "3-lr-1e-05-seed-1",
        f"4 trials, compared by {METRIC}",
    ]
    listed = json.loads(rlrun("sweep", "plan", BASE, *keys, "--json").out)
    assert listed["trials"][3] == {"name": "3-lr-1e-05-seed-1", "values": {"trainer.lr": 1e-5, "seed": 1}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "the spec has no [sweep]", id="no sweep"),
        pytest.param(
            ["--sweep", "trainer.lr=1,-1"], "trainer.lr: must be greater than 0, found -1", id="value"
        ),
        pytest.param(["--sweep", "trainer.lrs=1,2"], "did you mean `lr`?", id="key"),
        pytest.param(
            ["--sweep", "rollout.batch_size=8,9", "--set", "trainer.global_batch_size=64"],
            "the batch equation P·n = G·S does not hold",
            id="one combination",
        ),
        pytest.param(["--sweep", "trainer.lr"], "write --sweep trainer.lr=1e-6,1e-5", id="no values"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_starts(
    rlrun: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("plan", "launch"):
        outcome = rlrun("sweep", command, BASE, *arguments)
        assert (outcome.code, message in outcome.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_optuna_that_is_not_installed_is_refused(rlrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.runner.sweeps.optuna_search.find_spec", lambda name: None)
    settings = ["--set", 'sweep.search="optuna"', "--set", "sweep.trials=3", "--sweep", "seed=1,2"]
    outcome = rlrun("sweep", "launch", BASE, *settings)
    assert outcome.code == 2
    assert "sweep.search: needs the package optuna, which is not installed [E0403]" in outcome.err
    assert "pip install 'rlrun[optuna]'" in outcome.err


def test_a_sweep_that_cannot_be_used_is_refused(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = ["sweep", "launch", BASE, "--sweep", "seed=1,2"]
    outcome = rlrun(*launch, "--resume")
    assert (outcome.code, "there is no sweep runs/run-sweep to resume" in outcome.err) == (2, True)
    folder = SweepFolder(tmp_path / "runs/run-sweep")
    with folder.claimed(resume=False):
        folder.write([], METRIC, larger=True)
        assert "runs/run-sweep exists: continue the sweep (--resume)" in rlrun(*launch).err
        assert "the sweep runs/run-sweep is still running" in rlrun(*launch, "--resume").err
    folder.record.write_text("{}")
    assert "sweep.json does not hold a sweep" in rlrun("sweep", "status", "run-sweep").err
    assert "it has no sweep.json" in rlrun("sweep", "status", "other").err


def test_a_trial_is_launched_with_its_values_in_the_folder_of_the_sweep(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[LoadedSpec] = []
    monkeypatch.setattr(
        "rlrun.runner.job.launch.launch", lambda loaded, **options: launched.append(loaded) or 0
    )
    sweep = SweepFolder(tmp_path / "a sweep")
    arguments = LaunchArguments([str(BASE)], ["--set=trainer.steps=7", "--set=sweep.keys.seed=[1]"])
    values = {
        "trainer.lr": 1e-5,
        "algorithm": {"type": "rloo"},
        "rewards.0.weight": 0.5,
        "rollout.stop": ['"'],
    }
    command = arguments.command(sweep, trial_of(0, values), resume=True)
    outcome = rlrun(*command[command.index("rlrun") + 1 :])
    assert outcome.code == 0, outcome.err
    spec = launched[0].spec
    assert (spec.name, spec.runs_dir) == (trial_of(0, values).name, str(sweep.path))
    assert (spec.trainer.lr, spec.trainer.steps, spec.algorithm.type) == (1e-5, 7, "rloo")
    assert (spec.rewards[0].weight, spec.rollout.stop) == (0.5, ('"',))


def test_trials_are_mirrored_to_a_folder_of_their_sweep(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def launch_first(folder: SweepFolder, arguments: LaunchArguments, *rest: object) -> int:
        commands.append(arguments.command(folder, folder.trials()[0], resume=False))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlrun.runner.sweeps.run_sweep.run_sweep", launch_first)
    mirror = "checkpoint.mirror=file:///disk/team/"
    outcome = rlrun("sweep", "launch", BASE, "--sweep", "seed=1,2", "--set", mirror)
    assert outcome.code == 0, outcome.err
    assert '--set=checkpoint.mirror="file:///disk/team/run-sweep"' in commands[0]


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A sweep whose first two trials are done, whose third has failed, and whose fourth has not begun."""
    folder = SweepFolder(tmp_path / "lrs-sweep")
    folder.path.mkdir()
    trials = [trial_of(number, {"trainer.lr": lr}) for number, lr in enumerate((1e-6, 1e-5, 1e-4, 1e-3))]
    folder.write(trials, METRIC, larger=True)
    ends: list[dict[str, Any]] = [{"status": "done"}, {"status": "done"}, {"status": "failed"}]
    for trial, end, reward in zip(trials[:3], ends, (0.25, 0.75, None), strict=True):
        run = folder.run_of(trial)
        write_state(run.path, step=2, steps=2, **end)
        lines = [{"step": 1, METRIC: 0.1}, {"step": 2, METRIC: reward}] if reward else [{"step": 1}]
        run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_table_shows_every_trial_and_marks_the_best(rlrun: Command, folder: SweepFolder) -> None:
    outcome = rlrun("sweep", "status", folder.path.name, "--runs-dir", folder.path.parent)
    rows = [line.split() for line in outcome.out.splitlines()[:-1]]
    assert rows == [
        ["trial", "trainer.lr", "status", "step", METRIC],
        ["0", "1e-06", "done", "2/2", "0.25"],
        ["1", "1e-05", "done", "2/2", "0.75", "best"],
        ["2", "0.0001", "failed", "2/2"],
        ["3", "0.001", "waiting", "0/?"],
    ]
    shown = rlrun("sweep", "status", folder.path.name, "--runs-dir", folder.path.parent, "--json")
    table = json.loads(shown.out)
    assert (table["name"], table["metric"], table["goal"]) == ("lrs-sweep", METRIC, "max")
    trials = table["trials"]
    assert [trial["best"] for trial in trials] == [False, True, False, False]
    assert [trial["score"] for trial in trials] == [0.25, 0.75, None, None]


def test_a_sweep_as_a_python_object(folder: SweepFolder) -> None:
    sweep = Sweep(folder.path)
    assert [run.name for run in sweep.runs] == ["0-lr-1e-06", "1-lr-1e-05", "2-lr-0.0001"]
    assert sweep.best is not None and sweep.best.name == "1-lr-1e-05"
    table = sweep.table()
    assert list(table.columns) == ["trainer.lr", "status", "step", METRIC]
    with pytest.raises(ValueError, match="was started by another process"):
        sweep.wait()
    assert table[METRIC].max() == table.loc["1-lr-1e-05", METRIC] == 0.75


def test_a_sweep_from_python_that_cannot_start_raises_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"trainer\.lrs: unknown key"):
        load("quickstart").sweep({"trainer.lrs": [1, 2]})
    assert list(tmp_path.iterdir()) == []


HOSTILE_NAMES = [
    "../outside",
    "/tmp/outside",
    "..",
    "",
    "a",
    "0/../../x",
    "0\n",
    "logs",
    "0-" + "a" * 100,
    "0\u001b[2J",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_trial_cannot_leave_the_folder_of_its_sweep(rlrun: Command, tmp_path: Path, name: str) -> None:
    folder = SweepFolder(tmp_path / "runs" / "run-sweep")
    folder.path.mkdir(parents=True)
    record = {"metric": METRIC, "larger": True, "trials": [{"name": name, "values": {"seed": 1}}]}
    folder.record.write_text(json.dumps(record))
    before = sorted(tmp_path.rglob("*"))
    settings = ["--set", f"runs_dir='{folder.path.parent}'", "--sweep", "seed=1,2", "--resume"]
    outcome = rlrun("sweep", "launch", BASE, *settings)
    assert (outcome.code, "sweep.json does not hold a sweep" in outcome.err) == (2, True)
    assert rlrun("sweep", "status", "run-sweep", "--runs-dir", folder.path.parent).code == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["logs", "logs/1-seed-2.log", "sweep.json", "sweep.lock", "0-seed-1", "1-seed-2"]
)
def test_a_sweep_with_links_to_elsewhere_is_not_resumed(rlrun: Command, tmp_path: Path, name: str) -> None:
    folder = SweepFolder(tmp_path / "runs" / "run-sweep")
    folder.logs.mkdir(parents=True)
    folder.write([trial_of(0, {"seed": 1})], METRIC, larger=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = folder.path / name
    if name == "sweep.json":
        elsewhere = path.rename(tmp_path / "record.json")
    elif name == "logs":
        path.rmdir()
    path.symlink_to(elsewhere if "." not in name or name == "sweep.json" else elsewhere / "file")
    settings = ["--set", f"runs_dir='{folder.path.parent}'", "--sweep", "seed=1,2", "--resume"]
    outcome = rlrun("sweep", "launch", BASE, *settings)
    assert outcome.code == 2
    assert "is a link" in outcome.err or "Too many levels of symbolic links" in outcome.err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_pipe_in_place_of_a_log_does_not_block(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.logs.mkdir()
    trial = trial_of(0, {"seed": 1})
    os.mkfifo(folder.log_of(trial))
    with pytest.raises(OSError, match="No such device"):
        folder.open_log(trial)


@pytest.mark.parametrize(
    "values", [{"engine.python": "./x"}, {"seed": 1, "engine.python": "./x"}, {"seed": 3}, {"seed": True}, {}]
)
def test_the_record_of_a_sweep_sets_no_other_values_than_the_spec_allows(
    rlrun: Command, tmp_path: Path, values: dict[str, Any]
) -> None:
    pytest.importorskip("optuna")
    folder = SweepFolder(tmp_path / "runs" / "run-sweep")
    folder.path.mkdir(parents=True)
    folder.write([Trial("0-x", values)], METRIC, larger=True)
    settings = ["--set", f"runs_dir='{folder.path.parent}'", "--set", "sweep.search='optuna'"]
    settings += ["--set", "sweep.trials=1", "--sweep", "seed=1,2", "--resume"]
    outcome = rlrun("sweep", "launch", BASE, *settings)
    assert (outcome.code, "has values that [sweep.keys] does not allow" in outcome.err) == (2, True)


def test_swept_text_is_shown_as_it_is(rlrun: Command, tmp_path: Path) -> None:
    texts = ["[red]", "[/x]", ":bug:", "\x1b[2J", "[link=file:///etc/passwd]here[/link]"]
    folder = SweepFolder(tmp_path / "run-sweep")
    folder.path.mkdir()
    trials = [trial_of(number, {f"rollout.stop{texts[1]}": text}) for number, text in enumerate(texts)]
    folder.write(trials, f"[red]{METRIC}", larger=True)
    outcome = rlrun("sweep", "status", "run-sweep", "--runs-dir", tmp_path)
    assert outcome.code == 0, outcome.err
    for text in ("[red]", "[/x]", ":bug:", "u001b[2J", texts[4], f"[red]{METRIC}", "rollout.stop[/x]"):
        assert text in outcome.out
    assert "\x1b" not in outcome.out
    plan = rlrun("sweep", "plan", BASE, "--sweep", "rollout.stop=[['[red]'], ['[/x]']]")
    assert plan.code == 0, plan.err
