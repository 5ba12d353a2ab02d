"""launch, runs, status, stop, logs: the commands that look after runs."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from rlrun.cli.arguments import complete_run_or_sweep
from rlrun.cli.logs import fresh_lines
from rlrun.cli.main import make_app
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.doctor.check import Check
from rlrun.runner.host.model_files import fetch_model
from rlrun.runner.host.process_identity import Owner
from rlrun.runner.records.lock import make_lock
from rlrun.runner.records.run_time import RunTime
from rlrun.specs.reading.loading import LoadedSpec
from tests.cli.cli_outcome import Command
from tests.waiting import PATIENCE

BASE = Path(__file__).parents[1] / "specs" / "base.toml"

DRIVER = """
import fcntl, json, pathlib, signal, sys
from rlrun.runner.host.process_identity import Owner
path = pathlib.Path(sys.argv[1])
lock = path.with_name("driver.lock").open("a") if sys.argv[2] != "stranger" else None
if lock is not None:
    fcntl.flock(lock, fcntl.LOCK_EX)
state = json.loads(path.read_text()) | Owner.current().model_dump() | {"status": "running"}
path.write_text(json.dumps(state))
def stop(*_):
    if sys.argv[2] == "obey":
        new = path.with_suffix(".new")
        new.write_text(json.dumps(json.loads(path.read_text()) | {"status": "interrupted"}))
        new.replace(path)
        sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


def write_run(runs: Path, name: str, **state: Any) -> Path:
    folder = runs / name
    (folder / "logs").mkdir(parents=True)
    base = {
        "status": "done", "pid": 1, "host": "elsewhere", "step": 5, "steps": 10,
        "started": "2026-01-01T10:00:00+00:00", "updated": "2026-01-01T11:00:00+00:00",
        "metrics": {"rollout/reward/mean": 0.25, "train/loss": None}, "error": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(base | state))
    return folder


@contextmanager
def driver(runs: Path, name: str, manner: str, **state: object) -> Iterator[subprocess.Popen[str]]:
    """A process that says it runs a run, and obeys SIGINT or ignores it; a stranger has not claimed it."""
    folder = write_run(runs, name, **state)
    command = [sys.executable, "-c", DRIVER, str(folder / "state.json"), manner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_runs_lists_the_newest_first(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "old")
    write_run(tmp_path, "new", started="2026-02-01T10:00:00+00:00", status="failed", steps=None)
    lines = rlrun("runs", "--runs-dir", tmp_path).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["run", "status", "step"], ["new", "failed", "5/?"], ["old", "done", "5/10"],
    ]  # fmt: skip
    assert "0.250" in lines[2]
    listed = json.loads(rlrun("runs", "--runs-dir", tmp_path, "--json").out)
    assert [run["name"] for run in listed] == ["new", "old"]


def test_runs_of_an_empty_folder(rlrun: Command, tmp_path: Path) -> None:
    assert rlrun("runs", "--runs-dir", tmp_path).out == f"no runs in {tmp_path}\n"
    outcome = rlrun("status", "--runs-dir", tmp_path)
    assert outcome.code == 2
    assert "has no runs" in outcome.err


def test_status(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "job", status="failed", error="rank 1 died: out of memory")
    outcome = rlrun("status", "job", "--runs-dir", tmp_path)
    assert "job: failed, step 5 of 10" in outcome.out
    assert "error: rank 1 died: out of memory" in outcome.out
    assert "rollout/reward/mean  0.25" in outcome.out
    assert json.loads(rlrun("status", "--runs-dir", tmp_path, "--json").out)["name"] == "job"


def test_status_tells_how_long_a_running_job_takes_yet(rlrun: Command, tmp_path: Path) -> None:
    updated = datetime.now(UTC).isoformat()
    write_run(tmp_path, "job", status="running", host="elsewhere", seconds_left=470.0, updated=updated)
    outcome = rlrun("status", "job", "--runs-dir", tmp_path)
    assert "job: running, step 5 of 10, about 8 min left" in outcome.out
    assert " ago), process 1 on elsewhere" in outcome.out


def test_status_tells_what_was_useful_of_the_time_since_the_first_launch(
    rlrun: Command, tmp_path: Path
) -> None:
    run_time = RunTime(began=0.0, useful=6480.0, starting=72.0, repeated=648.0, between_steps=1.0)
    write_run(tmp_path, "job", status="done", run_time=run_time.model_dump())
    lost = "lost: 9.0 % steps that were lost and done again, 1.0 % starting"
    assert f"goodput: 90.0 % of 2 h 0 min; {lost}\n" in rlrun("status", "job", "--runs-dir", tmp_path).out


def test_status_counts_what_is_there_of_an_elastic_job(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "job", status="done", ranks=[1, 2], engines=[3, 4])
    out = rlrun("status", "job", "--runs-dir", tmp_path).out
    assert "trainer ranks: 1 of 2\nengines: 3 of 4\n" in out


def test_status_of_a_starting_run_says_what_it_waits_for(rlrun: Command, tmp_path: Path) -> None:
    updated = datetime.now(UTC).isoformat()
    folder = write_run(
        tmp_path, "job", status="running", host="elsewhere", metrics={}, step=0, updated=updated
    )
    assert "starting:" not in rlrun("status", "job", "--runs-dir", tmp_path).out
    line = "11-26 08:30:23 console: loading the engines …"
    (folder / "logs" / "driver.log").write_text(f"{line}\n")
    assert "starting: loading the engines\n" in rlrun("status", "job", "--runs-dir", tmp_path).out


def test_status_of_an_unknown_run(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "first-job")
    outcome = rlrun("status", "frist-job", "--runs-dir", tmp_path)
    assert outcome.code == 2
    assert "did you mean first-job?" in outcome.err


def test_a_run_whose_process_is_gone_has_died(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "job", **Owner.current().model_dump() | {"status": "running", "start_ticks": 1})
    outcome = rlrun("status", "job", "--runs-dir", tmp_path)
    assert "job: died" in outcome.out
    assert "nothing was saved (steps 1 to 5 are lost): rlrun resume job" in outcome.out
    stop = rlrun("stop", "job", "--runs-dir", tmp_path)
    assert stop.code == 2
    assert "not running: died" in stop.err


def test_stop_interrupts_and_waits(rlrun: Command, tmp_path: Path) -> None:
    with driver(tmp_path, "job", "obey") as process:
        (tmp_path / "job" / "checkpoints" / "step-5").mkdir(parents=True)
        (tmp_path / "job" / "checkpoints" / "step-5" / "driver.json").write_text("{}")
        outcome = rlrun("stop", "job", "--runs-dir", tmp_path)
        assert (outcome.code, outcome.out) == (
            0,
            "job: interrupted at step 5 of 10\n"
            f"rlrun resume job --runs-dir {tmp_path} continues from step 5 (checkpoints/step-5)\n",
        )
        assert process.wait(timeout=PATIENCE) == 130


def test_stop_names_no_step_of_a_run_that_has_not_begun_its_steps(rlrun: Command, tmp_path: Path) -> None:
    with driver(tmp_path, "job", "obey", steps=None, step=0):
        assert rlrun("stop", "job", "--runs-dir", tmp_path).out.startswith("job: interrupted\n")


def test_stop_says_when_the_run_goes_on(rlrun: Command, tmp_path: Path) -> None:
    with driver(tmp_path, "job", "ignore") as process:
        outcome = rlrun("stop", "job", "--runs-dir", tmp_path, "--timeout", 0)
        assert outcome.code == 3
        assert f"(process {process.pid}) was asked to stop and is still running after 0 s" in outcome.out
        assert process.poll() is None


def test_stop_signals_no_process_that_has_not_claimed_the_run(rlrun: Command, tmp_path: Path) -> None:
    with driver(tmp_path, "job", "stranger") as process:
        outcome = rlrun("stop", "job", "--runs-dir", tmp_path)
        assert outcome.code == 2
        assert f"process {process.pid}, which " in outcome.err
        assert "no signal was sent" in outcome.err
        assert process.poll() is None


ELSEWHERE = [{"host": "elsewhere"}, {"pid_namespace": 1}, {"boot_id": "another"}]


@pytest.mark.parametrize("place", ELSEWHERE)
def test_stop_never_signals_a_process_of_another_host_container_or_boot(
    place: dict[str, Any], rlrun: Command, tmp_path: Path
) -> None:
    with driver(tmp_path, "job", "ignore") as process:
        path = tmp_path / "job" / "state.json"
        elsewhere = {"updated": datetime.now(UTC).isoformat()} | place
        path.write_text(json.dumps(json.loads(path.read_text()) | elsewhere))
        outcome = rlrun("stop", "job", "--runs-dir", tmp_path)
        assert outcome.code == 2
        assert "which is another host or container; stop it there" in outcome.err
        assert process.poll() is None


HOSTILE = [
    b"", b"[]", b"\xff", b"[" * 100_000,
    *(json.dumps({"status": "running", "pid": pid}).encode() for pid in (0, -1, 1, 2**70, "1", [1], None)),
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_state_is_named_by_each_command_and_harms_none_that_asks_for_another(
    content: bytes, rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("kill", "killpg", "pidfd_open"):
        monkeypatch.setattr(os, function, lambda *_: pytest.fail("a process of the state was touched"))
    write_run(tmp_path, "good")
    (write_run(tmp_path, "bad") / "state.json").write_bytes(content)
    runs = ("--runs-dir", tmp_path)
    listed = rlrun("runs", *runs)
    assert (listed.code, "good" in listed.out) == (0, True)
    assert "bad/state.json does not hold a run's state" in listed.err
    assert [run["name"] for run in json.loads(rlrun("runs", *runs, "--json").out)] == ["good"]
    for command in (["status", "bad"], ["stop", "bad"], ["logs", "bad", "-f"]):
        outcome = rlrun(*command, *runs)
        assert outcome.code == 2
        assert "does not hold a run's state" in outcome.err
    assert "good: done" in rlrun("status", *runs).out
    assert rlrun("logs", "bad", *runs).code == 0


def test_logs_shows_the_end_of_each(rlrun: Command, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "job")
    (folder / "logs" / "driver.log").write_text("".join(f"line {number}\n" for number in range(50)))
    (folder / "logs" / "trainer-0.log").write_text("loaded\n")
    everything = rlrun("logs", "job", "--runs-dir", tmp_path, "-n", 2).out
    assert everything.count("\nline") == 2
    assert everything.endswith("loaded\n")
    assert "driver" not in rlrun("logs", "job", "trainer-0", "--runs-dir", tmp_path).out
    wrong = rlrun("logs", "job", "trainer-1", "--runs-dir", tmp_path)
    assert wrong.code == 2
    assert "did you mean trainer-0? logs: driver, trainer-0" in wrong.err


def test_logs_of_the_newest_run_to_its_end(rlrun: Command, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "job")
    (folder / "logs" / "driver.log").write_text("begun\ncut sho")
    outcome = rlrun("logs", "--follow", "--runs-dir", tmp_path)
    assert (outcome.code, outcome.out) == (0, f"== {folder / 'logs' / 'driver.log'}\nbegun\ncut sho\n")


def test_lines_that_came_since(tmp_path: Path) -> None:
    path, seen = tmp_path / "driver.log", dict[Path, int]()
    path.write_text("one\ntwo\nthr")
    assert list(fresh_lines(path, seen)) == ["one", "two"]
    with path.open("a") as file:
        file.write("ee\nfour\n")
    assert list(fresh_lines(path, seen)) == ["three", "four"]
    assert list(fresh_lines(path, seen)) == []
    path.write_text("anew\n")
    assert list(fresh_lines(path, seen)) == ["anew"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LoadedSpec, dict[str, bool]]]:
    """What would have been launched."""
    calls: list[tuple[LoadedSpec, dict[str, bool]]] = []
    module = types.ModuleType("rlrun.runner.job.launch")

    def launch(loaded: LoadedSpec, **options: bool) -> int:
        calls.append((loaded, options))
        return 3

    module.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlrun.runner.job.launch", module)
    monkeypatch.setattr("rlrun.cli.launch.end_process", sys.exit)  # not the process of the tests
    return calls


def test_launch_hands_over_the_checked_spec(rlrun: Command, launched: list[Any]) -> None:
    outcome = rlrun("launch", BASE, "--set", "trainer.lr=1e-3", "--name", "my-run", "--resume")
    assert outcome.code == 3
    ((loaded, options),) = launched
    assert (loaded.spec.name, loaded.spec.trainer.lr) == ("my-run", 1e-3)
    assert options == {"resume": True, "new": False, "quiet": False, "verbose": False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "trainer.lr=0"], "trainer.lr: must be greater than 0"),
        (["--name", "a b"], '"a b" is not a valid name'),
        (["--name", "it's"], '"it\'s" is not a valid name'),
        (["--resume", "--new"], "give only one of them"),
        (
            ["--set", "data.label_key=${env:RLRUN_NOT_SET}"],
            "the environment variable RLRUN_NOT_SET is not set",
        ),
    ],
)
def test_launch_refuses_before_anything_starts(
    rlrun: Command, launched: list[Any], arguments: list[str], message: str
) -> None:
    outcome = rlrun("launch", BASE, *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert launched == []


def lock_of(folder: Path, *overrides: str) -> Path:
    spec = load_checked_spec([BASE], overrides).spec
    folder.mkdir(parents=True)
    path = folder / "spec.lock.json"
    path.write_text(
        json.dumps({"spec": spec.model_dump(mode="json"), "model": {"sha256": "1"}, "versions": {}})
    )
    return path


def test_diff_of_specs_locks_and_runs(rlrun: Command, tmp_path: Path) -> None:
    lock_of(tmp_path / "runs" / "first", "trainer.lr=1e-3")
    second = lock_of(tmp_path / "second", "trainer.lr=2e-3")
    runs = ("--runs-dir", tmp_path / "runs")
    assert rlrun("diff", "first", second.parent, *runs).out == "spec.trainer.lr: 0.001 -> 0.002\n"
    lock = tmp_path / "runs" / "first" / "spec.lock.json"
    for path in (lock, second):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"given": {"trainer": {"lr": values["spec"]["trainer"]["lr"]}}}))
    assert rlrun("diff", "first", second.parent, *runs).out == "spec.trainer.lr: 0.001 -> 0.002\n", "once"
    assert rlrun("diff", BASE, second, *runs).out == "trainer.lr: 1e-6 -> 0.002\n"
    assert rlrun("diff", BASE, BASE).out == "no differences\n"
    (tmp_path / "adapter.toml").write_text(f'extends = "{BASE}"\n[trainer.lora]\nrank = 8\n')
    (tmp_path / "whole.toml").write_text('extends = "adapter.toml"\n[trainer]\nlora = false\n')
    removed = rlrun("diff", tmp_path / "adapter.toml", tmp_path / "whole.toml").out
    assert "trainer.lora.rank: 8 -> unset\n" in removed
    found = json.loads(rlrun("diff", second, BASE, "--json").out)
    assert found == [{"key": "trainer.lr", "before": 2e-3, "after": 1e-6}]
    (tmp_path / "other.json").write_text("[]")
    wrong = rlrun("diff", BASE, tmp_path / "other.json")
    assert (wrong.code, "is not a lock file" in wrong.err) == (2, True)


def test_diff_of_runs_compares_their_results(rlrun: Command, tmp_path: Path) -> None:
    for name, rewards in (("first", (0.1, 0.9, 0.7)), ("second", (0.2, 0.3, None))):
        folder = lock_of(tmp_path / name).parent
        lines = [{"step": 0, "eval/held-out/reward": rewards[0]}]
        lines += [
            {"step": step, "rollout/reward/mean": reward, "perf/step_time": 9.0 / step}
            for step, reward in enumerate(rewards, start=1)
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    runs = ("--runs-dir", tmp_path)
    difference, *table = rlrun("diff", "first", "second", *runs).out.splitlines()
    assert difference == "no differences"
    assert [line.split() for line in table if line] == [
        ["result", "first", "second"],
        ["steps", "3", "3"],
        ["perf/step_time.median", "3.75", "3.75"],
        ["rollout/reward/mean.last", "0.7", "0.3"],
        ["rollout/reward/mean.best", "0.9", "0.3"],
        ["eval/held-out/reward.last", "0.1", "0.2"],
        ["eval/held-out/reward.best", "0.1", "0.2"],
    ]
    found = json.loads(rlrun("diff", tmp_path / "first", "second", "--json", *runs).out)
    assert found[0] == {"key": "results.steps", "before": 3, "after": 3}
    assert "steps" not in rlrun("diff", "first", BASE, *runs).out  # a spec has no results
    (tmp_path / "second" / "metrics.jsonl").unlink()
    assert rlrun("diff", "first", "second", *runs).out == "no differences\n"


@pytest.mark.parametrize("option", [("--runs-dir", "{}"), ("--set", "runs_dir={}")])
def test_a_launch_goes_to_the_folder_of_runs(
    rlrun: Command, launched: list[Any], tmp_path: Path, option: tuple[str, str]
) -> None:
    name, value = option
    rlrun("launch", BASE, "--name", "other", name, value.format(tmp_path))
    [(loaded, _)] = launched
    assert (loaded.spec.runs_dir, loaded.spec.name) == (str(tmp_path), "other")


def test_hints_name_the_folder_of_runs(rlrun: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "job", status="failed")
    shown = rlrun("status", "job", "--runs-dir", tmp_path).out
    assert f"rlrun resume job --runs-dir {tmp_path} starts from the beginning\n" in shown


def test_every_command_about_runs_has_the_option() -> None:
    application = typer.main.get_command(make_app([]))
    commands = {
        **application.commands,
        **{f"sweep {k}": v for k, v in application.commands["sweep"].commands.items()},
    }
    named = {name for name, each in commands.items() if any("--runs-dir" in key.opts for key in each.params)}
    assert named == {
        *("launch", "resume", "submit", "status", "logs", "stop", "runs", "view", "diff", "doctor"),
        *("eval", "compare", "audit", "preferences", "conform"),
        *("sweep launch", "sweep status"),
    }


@pytest.mark.parametrize(("exists", "resume"), [(False, False), (True, True)])
def test_a_launch_resumes_its_run_if_it_exists(
    rlrun: Command, launched: list[Any], tmp_path: Path, exists: bool, resume: bool
) -> None:
    if exists:
        write_run(tmp_path, "job-2", status="interrupted")
    outcome = rlrun("launch", BASE, "--name", "job-2", "--runs-dir", tmp_path, "--resume-if-exists")
    assert outcome.code == 3, outcome.err
    [(_, options)] = launched
    assert options["resume"] is resume


def test_a_launch_continues_a_run_or_starts_another(rlrun: Command, launched: list[Any]) -> None:
    outcome = rlrun("launch", BASE, "--new", "--resume-if-exists")
    assert outcome.code == 2
    assert "give only one of them" in outcome.err
    assert not launched


def test_a_locked_launch_refuses_drift(rlrun: Command, launched: list[Any], tmp_path: Path) -> None:
    loaded = load_checked_spec([BASE])
    path = tmp_path / "spec.lock.json"
    path.write_text(json.dumps(make_lock(loaded, fetch_model(loaded.spec.model))))
    assert rlrun("launch", BASE, "--locked", path).code == 3
    assert len(launched) == 1
    outcome = rlrun("launch", BASE, "--locked", path, "--set", "trainer.lr=1e-3")
    assert outcome.code == 2
    assert "spec.trainer.lr: 1e-6 -> 0.001" in outcome.err
    assert len(launched) == 1


def test_a_run_is_resumed_with_what_its_launch_was_given(
    rlrun: Command, launched: list[Any], tmp_path: Path
) -> None:
    write_run(tmp_path, "job-2", status="interrupted")
    given = load_checked_spec([BASE], ["trainer.lr=1e-3"])
    lock = make_lock(given, fetch_model(given.spec.model))
    (tmp_path / "job-2" / "spec.lock.json").write_text(json.dumps(lock))
    outcome = rlrun("resume", "job-2", "--runs-dir", tmp_path, "--set", "trainer.steps=99")
    assert outcome.code == 3, outcome.err
    [(loaded, options)] = launched
    assert options["resume"]
    spec = loaded.spec
    assert (spec.name, spec.runs_dir, spec.trainer.lr, spec.trainer.steps) == (
        "job-2",
        str(tmp_path),
        1e-3,
        99,
    )


def test_what_is_not_installed_is_named(rlrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monkeypatch.setattr("rlrun.cli.launch.load", imports)
    outcome = rlrun("launch", BASE)
    assert outcome.code == 2
    assert "psutil is not installed; rlrun needs it to run jobs: pip install 'rlrun[run]'" in outcome.err


def test_an_interrupt_is_exit_130(rlrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlrun.cli.launch.load", interrupted)
    assert rlrun("launch", BASE).code == 130


def test_doctor_tells_what_is_wrong(rlrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Check("disk", "ok", "plenty"), Check("torch", "bad", "not installed", "pip install torch")
    monkeypatch.setattr("rlrun.runner.doctor.host.examine_host", lambda folder: iter([good, bad]))
    outcome = rlrun("doctor")
    assert outcome.code == 2
    assert "BAD   torch           not installed  -> pip install torch" in outcome.out
    assert json.loads(rlrun("doctor", "--json").out)[0]["found"] == "plenty"
    monkeypatch.setattr("rlrun.runner.doctor.host.examine_host", lambda folder: iter([good]))
    assert rlrun("doctor").code == 0


def test_doctor_without_a_gpu_says_so_and_how_to_go_on(
    rlrun: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    outcome = rlrun("doctor", "--gpu", "--json")
    assert outcome.code == 2
    [check] = json.loads(outcome.out)
    assert (check["subject"], check["verdict"]) == ("driver", "bad")
    assert "finds no GPU" in check["found"]
    assert "cluster.gpus_per_node = 0" in check["cure"]
    outcome = rlrun("doctor", "--sglang-python", "/opt/sglang/bin/python")
    assert outcome.code == 2
    assert "--sglang-python needs --gpu" in outcome.err


ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e"


def test_names_and_texts_of_a_foreign_folder_have_no_effect_on_the_terminal(
    rlrun: Command, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    name = f"[red]a{ESCAPES}\nb"
    folder = write_run(
        runs, name, status="failed", error=f"[bold]{ESCAPES}", metrics={f"m{ESCAPES}\n  x": 1.0, "[/x]": 2.0}
    )
    (folder / "logs" / f"engine{ESCAPES}.log").write_text(f"{ESCAPES}\x1b[31mred\x1b[0m\r10%\r20%\n")
    lock = {"spec": {"name": f"a{ESCAPES}"}, "model": {"sha256": "1"}}
    for number, file in enumerate(("spec.lock.json", "other.json")):
        lock["spec"]["seed"] = number
        (folder / file).write_text(json.dumps(lock | {f"key{ESCAPES}": number}))
    where = ("--runs-dir", runs)
    outcomes = [
        rlrun("runs", *where),
        rlrun("status", name, *where),
        rlrun("status", "other", *where),
        rlrun("logs", name, *where),
        rlrun("logs", name, "x", *where),
        rlrun("stop", name, *where),
        rlrun("diff", folder / "spec.lock.json", folder / "other.json"),
        rlrun("view", name, "--html", tmp_path / f"page{ESCAPES}.html", *where),
        rlrun("validate", tmp_path / f"{ESCAPES}.toml"),
        rlrun("plan", f"x{ESCAPES}"),
    ]
    for outcome in outcomes:
        text = outcome.out + outcome.err
        assert text.strip()
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(text), text
    listed, status, _, logs = outcomes[:4]
    assert "[red]a\\u001b[2J" in listed.out and len(listed.out.splitlines()) == 2
    assert "[/x]" in status.out and status.out.splitlines()[0].startswith("[red]a\\u001b[2J")
    assert "red\n10%\n20%" in logs.out


def test_names_that_a_shell_would_obey_are_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good", f"bad{ESCAPES}"):
        write_run(tmp_path / "runs", name)
    assert complete_run_or_sweep("") == ["good"]


def test_logs_shows_files_of_the_folder_alone(rlrun: Command, tmp_path: Path) -> None:
    logs = write_run(tmp_path, "job") / "logs"
    (logs / "driver.log").write_text("hello\n")
    (tmp_path / "secret").write_text("secret\n")
    (logs / "link.log").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "pipe.log")
    assert rlrun("logs", "job", "--runs-dir", tmp_path).out == f"== {logs / 'driver.log'}\nhello\n"
    assert "has no log link" in rlrun("logs", "job", "link", "--runs-dir", tmp_path).err
