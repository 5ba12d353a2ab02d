"""Whole jobs on tiny models, as a user runs them: the command line in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.records.run_folder import RunFolder
from tests.waiting import PATIENCE, wait_until

ROLLOUT_ONLY: dict[str, object] = {"debug__mode": "rollout", "deterministic": False}
"""Settings for a job where the trainer does not matter: it starts in half the time."""

MAIN = "from rlrun.cli.main import run; run()"
NOTICE_HANGUPS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
"""Under nohup, the tests and all that they start would ignore a closed terminal."""

PLUGINS = '''
import os
import time
from dataclasses import replace
from pathlib import Path

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.types import Status
from rlrun.specs.sections.section import Section


class NoParams(Section):
    """The parameters of a plugin that has none."""


class Short:
    """1 for an empty response, less for every token: learned in a few steps.

    From prompt 40 on it waits while there is a file of the name HOLD.
    """

    Params = NoParams
    api_version = 1

    def __init__(self, params):
        self.params = params

    def score(self, sample):
        hold = os.environ.get("HOLD")
        while hold and sample.prompt.index >= 40 and Path(hold).exists():
            time.sleep(0.01)
        return 1.0 - len(sample.tokens) / 16


class Broken(Short):
    """Raises for every sample."""

    def score(self, sample):
        raise RuntimeError(f"no score for {sample.text[:0]!r}")


class Slow(Short):
    """Takes a tenth of a second for a sample."""

    def score(self, sample):
        time.sleep(0.1)
        return super().score(sample)


class Stuck(Short):
    """Never answers."""

    def score(self, sample):
        time.sleep(3600)


class TwoTurns:
    """Two answers of at most 6 tokens, with 4 given tokens between them."""

    Params = NoParams
    api_version = 1

    def __init__(self, params):
        self.params = params

    async def run(self, session):
        trajectory = Trajectory(session.prompt.tokens)
        sampling = replace(session.sampling, max_new_tokens=6)
        trajectory.add(await session.generate(trajectory.tokens(), sampling))
        trajectory.give(session.prompt.tokens[:4])
        trajectory.add(await session.generate(trajectory.tokens(), sampling))
        trajectory.status = Status.COMPLETED
        return trajectory
'''

SPEC = """
name = "job"
seed = 1
deterministic = true

[model]
path = "{model}"

[data]
path = "rows.jsonl"

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[[rewards]]
type = "short"

[scoring]
timeout = {patience}

[trainer]
steps = 12
lr = 3e-3
dtype = "float32"

[engine]
dtype = "float32"
max_running = 64

[cluster]
threads = 1

[checkpoint]
interval = 4
export_hf = false
"""


@dataclass(frozen=True)
class Ended:
    """How a job ended, and what it left."""

    code: int
    output: str
    seconds: float
    folder: RunFolder

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step, from the run's folder."""
        return [json.loads(line) for line in self.folder.metrics.read_text().splitlines()]

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Every step's line without what depends on the clock."""
        return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in self.metrics]

    def superseded_steps(self) -> list[int]:
        """Returns the steps whose metrics the first resumption has set aside, since it repeats them."""
        lines = (self.folder.superseded / "1" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    def rewind(self, step: int) -> None:
        """Leaves the folder as after a kill at the last step, when the newest checkpoint is that of `step`.

        `--resume` then computes the later steps again, which costs one start less than a kill and a resume.
        """
        checkpoints = checkpoints_in(self.folder.checkpoints)
        assert step in checkpoints
        for later in checkpoints.keys() - {*range(step + 1)}:
            shutil.rmtree(checkpoints[later])
        self.folder.write_state(self.folder.read_state() | {"status": "running"})


@dataclass
class Jobs:
    """Runs jobs in one folder; `model` is a tiny model's."""

    folder: Path
    model: Path
    cluster: str | None = None
    """Address of the Ray cluster that jobs join. None: each starts its own."""
    environment: dict[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    """The beginning of the command: a program that runs the rest of it."""
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = "".join(json.dumps({"prompt": f"say {i}", "label": str(i)}) + "\n" for i in range(64))
        (self.folder / "rows.jsonl").write_text(rows)
        (self.folder / "job.toml").write_text(SPEC.format(model=self.model, patience=PATIENCE))
        site = self.folder / "site"
        info = site / "acme-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        names = {"short": "Short", "broken": "Broken", "slow": "Slow", "stuck": "Stuck"}
        lines = [f"{name} = acme_rewards:{cls}\n" for name, cls in names.items()]
        lines += ["[rlrun.rollouts]\n", "two_turns = acme_rewards:TwoTurns\n"]
        (info / "entry_points.txt").write_text("[rlrun.rewards]\n" + "".join(lines))
        (site / "acme_rewards.py").write_text(PLUGINS)
        path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: object) -> None:
        """Kills every process that was started, so that none runs beside the next tests."""
        for process in self._started:
            process.kill()
            process.wait()

    def start(
        self,
        name: str,
        *arguments: str,
        spec: str = "job.toml",
        main: str = MAIN,
        word: str = "launch",
        **settings: object,
    ) -> "Running":
        """Begin a job; settings are `--set` overrides, a double underscore for a dot; `main` is Python, and
        `word` the command."""
        if self.cluster is not None:
            settings = {"cluster__address": self.cluster} | settings
        overrides = [
            part
            for key, value in settings.items()
            for part in ("--set", f"{key.replace('__', '.')}={toml(value)}")
        ]
        command = [sys.executable, "-c", NOTICE_HANGUPS + main, word, spec, "--name", name]
        log = self.folder / f"{name}.out"
        with log.open("a") as out:
            process = subprocess.Popen(
                [*self.prefix, *command, *overrides, *arguments],
                cwd=self.folder,
                env=os.environ | self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return Running(process, log, RunFolder(self.folder / "runs" / name))

    def run(
        self, name: str, *arguments: str, spec: str = "job.toml", main: str = MAIN, **settings: object
    ) -> Ended:
        """Runs a job to its end."""
        return self.start(name, *arguments, spec=spec, main=main, **settings).wait()


class Running:
    """A job that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, folder: RunFolder) -> None:
        self.process = process
        self.folder = folder
        self._log = log
        self._offset = log.stat().st_size
        self._started = time.monotonic()

    def wait(self) -> Ended:
        """Its end; the process is killed past the deadline."""
        try:
            wait_until(lambda: self.process.poll() is not None, "the job's end", lambda: self.output)
        except AssertionError:
            self.signal(signal.SIGKILL)
            raise
        code = self.process.returncode
        return Ended(code, self.output, time.monotonic() - self._started, self.folder)

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._log.read_bytes()[self._offset :].decode()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to be so."""

        def holds() -> bool:
            running = self.process.poll() is None  # read first: the condition may hold from the job's end on
            if condition():
                return True
            assert running, f"the job ended before {what}:\n{self.output}"
            return False

        wait_until(holds, what, lambda: self.output)

    def until_step(self, step: int) -> None:
        """Wait for a step's line in metrics.jsonl."""
        metrics = self.folder.metrics
        self.until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= step, f"step {step}")

    def signal(self, number: int) -> None:
        """Send the driver a signal."""
        self.process.send_signal(number)

    def pid(self, name: str) -> int:
        """Returns the id of one of the job's processes, from state.json."""
        return int(self.folder.read_state()["processes"][name])

    def children(self) -> list[psutil.Process]:
        """Everything the driver started."""
        return psutil.Process(self.process.pid).children(recursive=True)


def toml(value: object) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return json.dumps(value)
