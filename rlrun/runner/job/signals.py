"""Stops a launch on SIGINT (Ctrl-C, `rlrun stop`), SIGTERM, SIGHUP, and SIGUSR1 (a scheduler).

A scheduler's signals come in no certain order and number: one preemption may send two or three over its grace
time, half a minute apart. A user's second signal means "at once"; theirs do not.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.child_processes import kill_children
from rlrun.runner.job.stopping import StopRequest, announcement

FROM_SCHEDULER = signal.SIGUSR1
"""The signal by which a scheduler takes the machines away: the job saves, and is to be started again."""
_SAME_REQUEST_SECONDS = 1.0
"""Signals that follow the first within this time are the same request: a closed terminal sends SIGHUP twice,
and wrappers such as `uv run` forward a Ctrl-C that the whole process group has already received."""


_NUMBERS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, FROM_SCHEDULER}


def start_again_on_signal() -> None:
    """Lets a scheduler's signal end this process with its exit code, until `stop_on_signals`."""
    signal.signal(FROM_SCHEDULER, lambda *_: os._exit(ExitCode.START_AGAIN))


def ends_at_once(first: int, repeated: int, seconds: float) -> bool:
    """Returns whether a signal that arrives `seconds` after the first one ends a launch without saving."""
    if repeated == FROM_SCHEDULER or (first == FROM_SCHEDULER and repeated != signal.SIGINT):
        return False
    return seconds > _SAME_REQUEST_SECONDS


@contextmanager
def held_signals() -> Iterator[None]:
    """Lets signals wait until `stop_on_signals`, or the end of the block.

    Between the claim of a name and the first state of the run, a signal would leave a run without a state.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


@contextmanager
def released_signals() -> Iterator[None]:
    """Lets signals end this process during a block within `held_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def stop_on_signals(
    task: asyncio.Task[None], stop: StopRequest, say: Callable[[str], None], seconds: float
) -> None:
    """Asks the run to stop on the first signal, with `seconds` to save.

    The next signal kills everything, if `ends_at_once` says so.
    """
    loop = asyncio.get_running_loop()
    first: tuple[int, float] | None = None

    def on_signal(number: int) -> None:
        nonlocal first
        if first is None:
            first = number, loop.time()
            by_scheduler = number == FROM_SCHEDULER
            say(announcement(stop.moment, stop.step, seconds, by_scheduler=by_scheduler))
            stop.ask(by_scheduler=by_scheduler)
            if stop.will_save:
                loop.call_later(seconds, give_up)
            else:
                task.cancel()
        elif ends_at_once(first[0], number, loop.time() - first[1]):
            kill_children()
            os._exit(ExitCode.INTERRUPTED)

    def give_up() -> None:
        if not task.done():
            say(f"not finished within {seconds:g} s (checkpoint.stop_timeout): ending now")
            task.cancel()

    for number in _NUMBERS:
        # `nohup` starts a process with SIGHUP ignored, which has to stay so.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
