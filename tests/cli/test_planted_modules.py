"""Modules that lie beside a spec run in no process of any command.

    folder of the spec ── planted: json.py, torch.py, triton.py … ── write a mark when they are imported
    PYTHONPATH         ── sitecustomize.py ── writes down every Python process that starts

The second list shows that the processes which could have imported a planted module were there at all.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlrun.cli.main import own_commands
from tests.integration.jobs import Jobs
from tests.runner.records.states import write_state

SPECS = Path(__file__).parents[1] / "specs"
DUMP = Path(__file__).parents[1] / "runner/conform/dumps/grpo/step-2.npz"
MAIN = "from rlrun.cli.main import run; run()"
PLANTED = (
    # of the standard library: whatever starts with the folder on its path imports these
    *(
        "ctypes",
        "json",
        "logging",
        "pickle",
        "random",
        "select",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
    ),
    # of the packages that jobs import
    *("numpy", "psutil", "ray", "rich", "rlrun", "torch", "transformers", "yaml"),
    # optional modules, which packages look for and usually do not find
    *("cupy", "numba", "opt_einsum", "pynvml", "setproctitle", "sglang", "triton", "wandb"),
    # of the interpreter itself
    *("sitecustomize", "usercustomize"),
)
PLANT = """
import os, sys
with open({mark!r} + str(os.getpid()), "w") as mark:
    mark.write(repr(sys.orig_argv))
"""
WATCH = """
import os, sys
with open({processes!r} + str(os.getpid()), "a") as process:
    process.write(repr(sys.orig_argv))
"""
API = """
import rlrun
from rlrun.runner.contracts.errors import JobError
job = rlrun.load("job.toml")
job.validate()
try:
    run = job.launch(name="{name}")
except JobError as error:
    assert "the run runs/run exists" in str(error), error
else:
    run.wait()
"""


@dataclass(frozen=True)
class Folder:
    """A folder with a spec and planted modules."""

    path: Path
    marks: Path
    processes: Path
    site: Path

    def python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs Python in this folder."""
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
        path = filter(None, [str(self.site), environment.get("PYTHONPATH")])
        environment |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def rlrun(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command as its console script does, whose path does not begin with the current folder."""
        return self.python("-P", "-c", MAIN, *arguments)

    def planted_that_ran(self) -> list[str]:
        """Returns the name of each planted module that ran, with the command line of its process."""
        return sorted(f"{mark.name.partition('.')[0]} in {mark.read_text()}" for mark in self.marks.iterdir())

    def commands(self) -> str:
        """Returns the command lines of all Python processes that read their environment."""
        return "\n".join(path.read_text() for path in self.processes.iterdir())


def plant(path: Path, outside: Path) -> Folder:
    """Plants the modules in a folder; what they write goes to `outside`."""
    folder = Folder(path, outside / "marks", outside / "processes", outside / "watch")
    for inner in (folder.marks, folder.processes, folder.site):
        inner.mkdir(parents=True)
    for name in PLANTED:
        (path / f"{name}.py").write_text(PLANT.format(mark=f"{folder.marks / name}."))
    (folder.site / "sitecustomize.py").write_text(WATCH.format(processes=f"{folder.processes}/"))
    return folder


@pytest.fixture(scope="module")
def beside_a_spec(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with a valid spec, which cannot be launched: the model has no weights, the name is in use."""
    path = tmp_path_factory.mktemp("planted")
    shutil.copytree(SPECS / "tiny", path / "tiny")
    shutil.copy(SPECS / "rows.jsonl", path)
    shutil.copy(SPECS / "base.toml", path / "job.toml")
    write_state(path / "runs" / "run", status="done", step=1, steps=1)
    (path / "runs" / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    (path / "runs" / "run" / "logs").mkdir()
    (path / "answers.jsonl").write_text('{"response": "Answer: 1", "label": "1"}\n')
    (path / "slime.sh").write_text("python3 train.py --hf-checkpoint tiny --prompt-data rows.jsonl\n")
    (path / "verl.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=tiny\n")
    (path / "prime.toml").write_text("max_steps = 3\n")
    (path / "train.py").write_text("from trl import GRPOTrainer\nGRPOTrainer('tiny', [len])\n")
    trials = {
        "metric": "train/loss",
        "larger": False,
        "trials": [{"name": "0-seed-1", "values": {"seed": 1}}],
    }
    (path / "runs" / "trials").mkdir()
    (path / "runs" / "trials" / "sweep.json").write_text(json.dumps(trials))
    shutil.copytree(tiny_model, path / "model")
    return plant(path, tmp_path_factory.mktemp("outside"))


GROUPS = {"convert", "import", "plugins", "sweep"}
ON_CPU = ("--set", "cluster.gpus_per_node=0")
TO_SLURM = ("--set", 'submit={type = "slurm"}', "--set", "cluster.threads=1")
FAST = {
    "validate": (("validate", "job.toml"), 0),
    "plan": (("plan", "job.toml"), 0),
    "plan for GPUs": (("plan", "gspo-30b-a3b", "--gpu", "H100"), 0),
    "sweep plan": (("sweep", "plan", "job.toml", "--sweep", "seed=1,2"), 0),
    "diff": (("diff", "job.toml", "ppo"), 0),
    "compare": (("compare", "run", "run"), 2),
    "contamination": (("contamination", "job.toml"), 2),  # it has no evaluation
    "audit": (("audit", "run"), 2),
    "preferences": (("preferences", "run"), 2),
    "submit": (("submit", "job.toml", "--dry-run", *TO_SLURM), 0),
    "attempt": (("attempt", "runs/.submitted/run", "--nodes", "1"), 2),
    "node": (("node", "control", "--rank", "0"), 2),
    "release": (("release", "runs/.submitted/run", "--seconds", "0"), 0),
    "runs": (("runs",), 0),
    "status": (("status", "run"), 0),
    "logs": (("logs", "run"), 0),
    "stop": (("stop", "run"), 2),
    "resume": (("resume", "run"), 2),
    "view": (("view", "run", "--html", "page.html"), 0),
    "validate --explain": (("validate", "job.toml", "--explain", "rollout"), 0),
    "diff of runs": (("diff", "runs/run", "runs/run"), 2),
    "sweep status": (("sweep", "status", "trials"), 0),
    "plugins show": (("plugins", "show", "code"), 0),
    "plugins trust": (("plugins", "trust"), 0),
    "plugins new": (("plugins", "new", "reward", "mine"), 0),
    "import slime": (("import", "slime", "slime.sh"), 0),
    "import trl": (("import", "trl", "train.py"), 0),
    "import verl": (("import", "verl", "verl.sh"), 0),
    "import prime-rl": (("import", "prime-rl", "prime.toml"), 0),
    "convert inspect": (("convert", "inspect", "model"), 0),
    "explain": (("explain", "E0201"), 0),
    "recipes": (("recipes",), 0),
    "schema": (("schema",), 0),
    "plugins list": (("plugins", "list"), 0),
    "init": (("init", "started"), 0),
}


USUAL = (
    *("validate", "plan", "sweep plan", "submit", "attempt", "node", "view", "stop"),
    *("plugins new", "import trl", "convert inspect", "init"),
)
"""In `make test`: one command of each part of the command line. All commands start in the same way, and none
of these starts a process."""
READING = [
    pytest.param(*row, id=name, marks=() if name in USUAL else pytest.mark.slow) for name, row in FAST.items()
]


@pytest.mark.parametrize(("arguments", "code"), READING)
def test_a_command_that_reads_imports_nothing_planted(
    beside_a_spec: Folder, arguments: Sequence[str], code: int
) -> None:
    ended = beside_a_spec.rlrun(*arguments)
    assert beside_a_spec.planted_that_ran() == []
    assert ended.returncode == code, ended.stderr
    assert repr(MAIN) in beside_a_spec.commands()


CONVERTING = {
    "convert hf-to-dcp": (("convert", "hf-to-dcp", "model", "dcp"), 0),
    "convert dcp-to-hf": (("convert", "dcp-to-hf", "dcp", "from-dcp"), 0),
    "convert hf-to-hf": (("convert", "hf-to-hf", "model", "cast", "--dtype", "float32"), 0),
    "convert auto": (("convert", "auto", "model", "auto"), 0),
    "conform": (("conform", str(DUMP)), 0),
    "plugins check": (("plugins", "check", "rlrun"), 2),  # some plugins cannot be made without parameters
}


@pytest.mark.slow
def test_a_command_that_imports_torch_imports_nothing_planted(beside_a_spec: Folder) -> None:
    for name, (arguments, code) in CONVERTING.items():
        ended = beside_a_spec.rlrun(*arguments)
        assert beside_a_spec.planted_that_ran() == [], name
        assert ended.returncode == code, (name, ended.stderr)


STARTING = {
    "score": (("score", "answers.jsonl", "--reward", "exact_match"), "rlrun.runner.scoring.worker"),
    "plan --deep": (("plan", "job.toml", "--deep", *ON_CPU), "rlrun.runner.trainer.dry_run.rank"),
    "launch --detach": (("launch", "job.toml", "--name", "run", "--detach"), "'-m', 'rlrun', 'launch'"),
    "sweep launch": (
        ("sweep", "launch", "job.toml", "--sweep", "seed=1", "--set", "debug.mode='rollout'"),
        "'-m', 'rlrun', 'launch'",
    ),
}


@pytest.mark.parametrize(("arguments", "process"), STARTING.values(), ids=STARTING.keys())
def test_no_process_of_a_command_imports_anything_planted(
    beside_a_spec: Folder, arguments: Sequence[str], process: str
) -> None:
    before = beside_a_spec.commands()
    ended = beside_a_spec.rlrun(*arguments)
    assert beside_a_spec.planted_that_ran() == []
    new = beside_a_spec.commands().count(process) - before.count(process)
    assert new >= 1, ended.stdout + ended.stderr


def test_a_launch_from_python_imports_nothing_planted(beside_a_spec: Folder) -> None:
    before = beside_a_spec.commands().count("'-m', 'rlrun', 'launch'")
    ended = beside_a_spec.python("-P", "-c", API.format(name="run"))
    assert beside_a_spec.planted_that_ran() == []
    assert ended.returncode == 0, ended.stderr
    assert beside_a_spec.commands().count("'-m', 'rlrun', 'launch'") == before + 1


def test_every_command_is_tried() -> None:
    words = [*JOBS.values(), *(row[0] for table in (FAST, CONVERTING, STARTING) for row in table.values())]
    commands = {
        (name, command.name or command.callback.__name__)
        for name in GROUPS
        for command in own_commands()[name].load().registered_commands
    }
    assert {row[: 1 + (row[0] in GROUPS)] for row in words} == commands | {
        (name,) for name in own_commands().keys() - GROUPS
    }
    assert len(PLANTED) >= 20


def test_the_planted_modules_run_where_the_folder_is_on_the_path(tmp_path: Path) -> None:
    path = tmp_path / "spec"
    path.mkdir()
    folder = plant(path, tmp_path / "outside")
    folder.python("-c", f"import {', '.join(name for name in PLANTED if 'custom' not in name)}")
    ran = {line.partition(" ")[0] for line in folder.planted_that_ran()}
    assert ran == {name for name in PLANTED if "custom" not in name}


@pytest.fixture(scope="module")
def beside_a_job(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with a spec that can be launched, and its plugins installed."""
    jobs = Jobs(tmp_path_factory.mktemp("jobs"), tiny_model)
    planted = plant(jobs.folder, tmp_path_factory.mktemp("outside-jobs"))
    shutil.copytree(jobs.folder / "site", planted.site, dirs_exist_ok=True)
    return planted


SHORT = ("--set", "trainer.steps=1", "--set", "checkpoint.interval=1", "--set", "checkpoint.export_hf=true")
JOBS = {
    "launch": ("launch", "job.toml", "--name", "a", *SHORT),
    "resume": ("resume", "a", "--set", "trainer.steps=2", "--allow-local-plugins"),
    "debug": ("debug", "job.toml"),
    "eval": ("eval", "job.toml", "--set", 'eval.datasets=[{name = "held", path = "rows.jsonl"}]'),
    "sweep launch": ("sweep", "launch", "job.toml", "--sweep", "seed=3", *SHORT),
    "doctor": ("doctor",),
}


def _check_a_job(folder: Folder, ended: "subprocess.CompletedProcess[str]", workers: int) -> None:
    assert folder.planted_that_ran() == []
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert folder.commands().count("default_worker.py") >= workers


def test_no_process_of_a_launch_imports_anything_planted(beside_a_job: Folder) -> None:
    _check_a_job(beside_a_job, beside_a_job.rlrun(*JOBS["launch"]), workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume", "debug", "eval", "sweep launch", "doctor"])
def test_no_process_of_a_job_imports_anything_planted(beside_a_job: Folder, name: str) -> None:
    if name == "resume":
        beside_a_job.rlrun(*JOBS["launch"])
    _check_a_job(beside_a_job, beside_a_job.rlrun(*JOBS[name]), workers=0 if name == "doctor" else 2)


@pytest.mark.slow
def test_no_process_of_a_detached_launch_imports_anything_planted(beside_a_job: Folder) -> None:
    ended = beside_a_job.python("-P", "-c", API.format(name="from-python"))
    _check_a_job(beside_a_job, ended, workers=2)
    state = json.loads((beside_a_job.path / "runs" / "from-python" / "state.json").read_text())
    assert state["status"] == "done"
