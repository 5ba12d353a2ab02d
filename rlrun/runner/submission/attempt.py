"""One attempt of a submitted job: its nodes, its launch, its end, and whether another one follows.

start the nodes ─▶ Ray is up on all ─▶ rlrun launch --resume-if-exists ─▶ end the nodes ─▶ again?
       SIGUSR1, or a node has got SIGTERM ──▶ SIGUSR1 to the launch: save
       SIGTERM ────────────────────────────▶ the same, and the scheduler decides what follows
       SIGINT, or the file `stop` ─────────▶ SIGINT to the launch: save, and not again

Where the scheduler has started Ray itself, the launch joins that cluster, and no nodes are started or ended.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rlrun.runner.checkpoints.folder import newest_step
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import print_text
from rlrun.runner.submission.folder import Attempt, SubmissionFolder
from rlrun.runner.submission.node import END, HEAD, TAKEN, has_file, make_token, ray_variables
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.safe_python import own_python

_POLL_S = 0.2
_START_SECONDS = 600.0
"""How long the nodes may take until Ray runs on all of them."""
_END_SECONDS = 60.0
"""How long the nodes may take to end."""
_REQUEUE_SECONDS = 300.0
"""How long a scheduler may take to end this attempt after it was asked for another one."""
_WORTH_ANOTHER = (ExitCode.START_AGAIN, ExitCode.MACHINES_FAILED, -signal.SIGUSR1)
"""The last: asked before it had a handler."""


@dataclass(frozen=True, slots=True)
class AttemptOrders:
    """What a launcher's script says of an attempt."""

    id: str
    nodes: int
    start_nodes: str | None
    """Shell command that runs `rlrun node` on every node until they end. None: Ray runs at `address`."""
    address: str | None
    """Address of the Ray cluster that the scheduler has started for this attempt. None: see `start_nodes`."""
    grace_seconds: float
    """How long the last attempt, whose machines the scheduler has taken, may still save."""
    again: str | None
    """Shell command that has the scheduler start the job again, which ends this attempt. None: the exit code
    says so."""
    idle_attempts: int


class _Signals:
    """The signals that this attempt has received."""

    def __init__(self) -> None:
        self.received: set[int] = set()
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self.received.add(number))

    @staticmethod
    def reset() -> None:
        """Lets signals end this process again."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)


def run_attempt(folder: SubmissionFolder, orders: AttemptOrders) -> int:
    """Runs one attempt; returns the exit code of its launch, or 3 if too many attempts were idle."""
    signals = _Signals()
    if orders.address is not None:
        _wait_for_last_attempt(folder, orders.grace_seconds, signals)
    with _control_folder(folder) as control:
        code = _run(folder, orders, control, signals)
        # before the folder is removed: `rlrun release` then gives the machine back, which may be this one
        folder.add_attempt(Attempt(id=orders.id, code=code, step=newest_step(folder.run.checkpoints) or 0))
    stopped = bool(signals.received & {signal.SIGTERM, signal.SIGINT}) or folder.stop.exists()
    attempts = folder.read_attempts()
    follows = after_attempt(attempts, idle_attempts=orders.idle_attempts, ended_from_outside=stopped)
    _say(f"attempt {orders.id}: ended with {code}, step {attempts[-1].step} is saved")
    if follows is Next.IDLE:
        _say(f"{orders.idle_attempts} attempts saved no new step: not queued again")
        return ExitCode.FAILED
    if follows is Next.AGAIN:
        if orders.again is None:
            return code if code >= 0 else ExitCode.START_AGAIN
        _say("queueing the job again")
        signals.reset()
        if subprocess.run(["bash", "-c", orders.again], check=False).returncode == 0:
            time.sleep(_REQUEUE_SECONDS)
    return code if code >= 0 else 128 - code


def _wait_for_last_attempt(folder: SubmissionFolder, seconds: float, signals: _Signals) -> None:
    """Waits for an attempt that still saves, and removes what killed ones have left.

    A scheduler that starts Ray itself starts the next attempt while machines of the last one are being
    taken.
    """
    deadline = time.monotonic() + seconds
    while folder.controls() and time.monotonic() < deadline:
        if signals.received:
            return
        time.sleep(_POLL_S)
    for control in folder.controls():
        shutil.rmtree(control, ignore_errors=True)


@contextmanager
def _control_folder(folder: SubmissionFolder) -> Iterator[Path]:
    """Creates the folder that this attempt and its nodes share, and removes it."""
    control = folder.make_control()
    try:
        yield control
    finally:
        shutil.rmtree(control, ignore_errors=True)


def _run(folder: SubmissionFolder, orders: AttemptOrders, control: Path, signals: _Signals) -> int:
    """Returns the exit code of the launch, after all nodes have ended."""
    if orders.start_nodes is None:
        _say(f"attempt {orders.id}: joining {orders.nodes} nodes at {orders.address}")
        return _launch(folder, orders, control, None, signals)
    make_token(control)
    _say(f"attempt {orders.id}: starting {orders.nodes} nodes")
    nodes = subprocess.Popen(
        ["bash", "-c", orders.start_nodes], env=os.environ | {"RLRUN_CONTROL": str(control)}
    )
    os.environ.update(ray_variables(control))
    try:
        return _launch(folder, orders, control, nodes, signals)
    finally:
        (control / END).touch()
        with suppress(subprocess.TimeoutExpired):
            nodes.wait(_END_SECONDS)
        nodes.kill()
        nodes.wait()


def _launch(
    folder: SubmissionFolder,
    orders: AttemptOrders,
    control: Path,
    nodes: "subprocess.Popen[bytes] | None",
    signals: _Signals,
) -> int:
    """Returns the exit code of the launch, or of what kept it from starting."""
    address = _wait_for_nodes(orders, control, nodes, signals, folder.stop)
    if (asked := _asked(control, signals, folder.stop)) is not None:
        return ExitCode.INTERRUPTED if asked == signal.SIGINT else ExitCode.START_AGAIN
    if address is None:
        _say("the nodes did not start; their output is above")
        return ExitCode.MACHINES_FAILED
    with subprocess.Popen(_launch_command(folder, address)) as launch:
        sent: set[int] = set()
        while launch.poll() is None:
            asked = _asked(control, signals, folder.stop)
            if asked is not None and asked not in sent:
                _say(f"asking the job to save ({signal.Signals(asked).name})")
                launch.send_signal(asked)
                sent.add(asked)
            time.sleep(_POLL_S)
        return launch.returncode


def _launch_command(folder: SubmissionFolder, address: str) -> Sequence[str]:
    address_of_ray = f"cluster.address={as_toml(address)}"
    return own_python(
        "-m", "rlrun", "launch", str(folder.spec), "--resume-if-exists", "--set", address_of_ray
    )


def _asked(control: Path, signals: _Signals, stop: Path) -> int | None:
    """Returns the signal that the launch should get: SIGINT ends the job, SIGUSR1 only this attempt."""
    if signal.SIGINT in signals.received or stop.exists():
        return signal.SIGINT
    if signals.received or (has_file(control, TAKEN) and control.exists()):
        return signal.SIGUSR1
    return None


def _wait_for_nodes(
    orders: AttemptOrders,
    control: Path,
    nodes: "subprocess.Popen[bytes] | None",
    signals: _Signals,
    stop: Path,
) -> str | None:
    """Returns the address of the Ray cluster when it has all nodes; None if it will not, or must not."""
    from rlrun.runner.cluster.ray_nodes import count_nodes

    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and (nodes is None or nodes.poll() is None):
        if _asked(control, signals, stop) is not None:
            return None
        with suppress(OSError):
            address = orders.address or (control / HEAD).read_text()
            if count_nodes(address) >= orders.nodes:
                _say(f"Ray runs on {orders.nodes} nodes, at {address}")
                return address
        time.sleep(_POLL_S)
    return None


def _say(text: str) -> None:
    print_text(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Next(Enum):
    """What follows an attempt."""

    END = "end"
    """The job is done, failed, or was stopped by its user or the scheduler."""
    AGAIN = "again"
    IDLE = "idle"
    """It would be started again, but too many attempts have saved no new step."""


def after_attempt(attempts: Sequence[Attempt], *, idle_attempts: int, ended_from_outside: bool) -> Next:
    """Returns what follows the last attempt.

    `ended_from_outside`: the scheduler or the user ends the job itself, and decides what happens to it.
    """
    if ended_from_outside or attempts[-1].code not in _WORTH_ANOTHER:
        return Next.END
    steps = [0, *(attempt.step for attempt in attempts)]
    recent = steps[-idle_attempts - 1 :]
    idle = len(attempts) >= idle_attempts and recent[0] == recent[-1]
    return Next.IDLE if idle else Next.AGAIN
