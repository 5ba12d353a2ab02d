"""Runs the trials of a sweep, each as a launch in a process of its own.

    grid, or Optuna ─▶ next trial ─▶ free slot ─▶ rlrun launch --set … [--resume] ─▶ state of its run
          ▲                                                                              │
          └────────────────────────── a trial has ended ────────────────────────────────┘

What a trial has done is in its run's folder alone, so a sweep that was killed continues from there.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.job.run_ending import ENDING_TIMEOUT_S, has_ended, stop_timeout
from rlrun.runner.sweeps.optuna_search import suggest
from rlrun.runner.sweeps.room import Slot
from rlrun.runner.sweeps.sweep_folder import SweepFolder, TrialState
from rlrun.runner.sweeps.trials import Trial, objective, settings_of, trial_of, trials_of
from rlrun.specs.derived.sweep_trials import allows, axes_of
from rlrun.specs.safe_python import own_python
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.sweep_section import SweepSpec

_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
NextTrial = Callable[[Sequence[TrialState]], Trial | None]
"""Returns the next trial to run, by the states of all trials so far; None if there are no more."""


@dataclass(frozen=True, slots=True)
class LaunchArguments:
    """The arguments of `rlrun launch` that all trials share."""

    files: Sequence[str]
    options: Sequence[str]
    """`--set` and `--profile`."""
    document: str = ""
    """The spec that a file `-` stands for."""

    def command(self, folder: SweepFolder, trial: Trial, *, resume: bool) -> list[str]:
        """Returns the command that launches a trial."""
        settings = [*settings_of(trial.values), f"runs_dir={folder.path.absolute().as_posix()!r}"]
        command = own_python("-m", "rlrun", "launch", *self.files, *self.options)
        command += [f"--set={setting}" for setting in settings]
        return [*command, f"--name={trial.name}", *["--resume"] * resume]


@dataclass
class _Stop:
    """Passes signals on to the launches that run, as SIGTERM: they save their last step and end.

    Not as SIGINT, which a launch ignores until it has a handler, if a shell started the sweep with `&`.
    """

    asked: bool = False
    launches: dict["subprocess.Popen[bytes]", "_Running"] = field(default_factory=dict)

    def add(self, process: "subprocess.Popen[bytes]", running: "_Running") -> None:
        """Adds a launch; one that was started while a signal arrived is told at once."""
        self.launches[process] = running
        if self.asked:
            process.terminate()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        for process in self.launches:
            process.terminate()


@dataclass(frozen=True, slots=True)
class _Running:
    trial: Trial
    slot: Slot
    started: float


def run_sweep(
    folder: SweepFolder,
    arguments: LaunchArguments,
    next_trial: NextTrial,
    slots: Sequence[Slot],
    say: Callable[[str], None],
) -> ExitCode:
    """Runs trials until there are no more; returns whether one has failed, or the sweep was interrupted.

    The folder's list of trials must exist; `next_trial` adds to it.
    """
    stop, free, failed = _Stop(), list(slots), False
    handlers = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        while True:
            while free and not stop.asked and (trial := next_trial(folder.states())) is not None:
                slot = free.pop(0)
                process = _start(folder, arguments, trial, slot, say)
                stop.add(process, _Running(trial, slot, time.monotonic()))
            if not stop.launches:
                break
            process = _wait_for_any(list(stop.launches))
            running = stop.launches.pop(process)
            free.append(running.slot)
            failed |= not _report(folder, running, process.returncode, say)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ExitCode.INTERRUPTED if stop.asked else ExitCode.FAILED if failed else ExitCode.DONE


def is_pending(state: TrialState) -> bool:
    """Returns whether a resumed sweep runs a trial: it has not been done."""
    return state.status != "done"


def _start(
    folder: SweepFolder,
    arguments: LaunchArguments,
    trial: Trial,
    slot: Mapping[str, str],
    say: Callable[[str], None],
) -> "subprocess.Popen[bytes]":
    """Launches a trial, or resumes it. Waits for the launch of a sweep that was killed to end."""
    run = folder.run_of(trial)
    resume = run.was_launched
    if resume and not has_ended(run, stop_timeout(run) + ENDING_TIMEOUT_S):
        raise RunFolderError(
            f"{run.shown} is still running: rlrun stop {trial.name} --runs-dir {folder.shown}"
        )
    with folder.open_log(trial) as log:
        process = subprocess.Popen(
            arguments.command(folder, trial, resume=resume),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | slot,
            start_new_session=True,  # signals of the terminal reach the sweep alone, which passes them on
            preexec_fn=_end_with_the_sweep,  # noqa: PLW1509  (it has no other threads)
        )
    assert process.stdin is not None
    process.stdin.write(arguments.document.encode())
    process.stdin.close()
    say(f"{trial.name}: {'continues' if resume else 'starts'}")
    return process


def _end_with_the_sweep() -> None:
    """Asks the kernel for a SIGTERM when the sweep ends, also if it is killed: the launch then saves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_any(launches: Sequence["subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
    """Returns a launch that has ended. A job ends by its own deadlines, so there is none here."""
    while True:
        for process in launches:
            if process.poll() is not None:
                return process
        time.sleep(_POLL_S)


def _report(folder: SweepFolder, running: _Running, code: int, say: Callable[[str], None]) -> bool:
    """Reports how a trial has ended; returns whether it has not failed."""
    metric = folder.metric()
    state = folder.state_of(running.trial, metric)
    # the last: told before it had a handler
    failed = code not in (ExitCode.DONE, ExitCode.START_AGAIN, ExitCode.INTERRUPTED, -signal.SIGTERM)
    score = "" if state.score is None else f", {metric} {state.score:.4g}"
    seconds = time.monotonic() - running.started
    status = "failed" if failed else state.status
    say(f"{running.trial.name}: {status} at step {state.step} after {seconds:.0f} s{score}")
    if failed:
        say(f"  see {folder.log_of(running.trial)}")
    return not failed


def prepare_search(folder: SweepFolder, spec: Spec) -> NextTrial:
    """Writes the list of trials, with those of earlier launches, and returns the choice of the next one.

    Trials that are done are not run again; each of the others is run once. Raises RunFolderError if a trial
    has values that `[sweep.keys]` does not allow: sweep.json cannot set other keys of the spec.
    """
    assert spec.sweep is not None
    metric, larger = objective(spec)
    known = folder.trials()
    wanted = trials_of(spec.sweep, known) if spec.sweep.search == "grid" else known
    if spec.sweep.search == "optuna":
        _check_values(folder, known, spec.sweep)
    new = [trial for trial in wanted if trial not in known]
    folder.write([*known, *new], metric, larger=larger)
    pending = [state.trial for state in folder.states() if is_pending(state) and state.trial in wanted]

    def next_trial(states: Sequence[TrialState]) -> Trial | None:
        if pending:
            return pending.pop(0)
        assert spec.sweep is not None
        if spec.sweep.search == "grid" or len(states) >= (spec.sweep.trials or 0):
            return None
        values = suggest(axes_of(spec.sweep), states, larger=larger, seed=spec.seed)
        trial = trial_of(len(states), values)
        folder.write([*(state.trial for state in states), trial], metric, larger=larger)
        return trial

    return next_trial


def _check_values(folder: SweepFolder, trials: Sequence[Trial], sweep: SweepSpec) -> None:
    for trial in trials:
        if not allows(axes_of(sweep), trial.values):
            raise RunFolderError(
                f"the trial {trial.name} of {folder.shown} has values that [sweep.keys] does not allow: "
                "change the keys back, or start another sweep (--name)"
            )
