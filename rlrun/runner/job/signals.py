"""Stops a launch on SIGINT (Ctrl-C, `rlrun stop`), SIGTERM and SIGHUP."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlrun.runner.host.child_processes import kill_children
from rlrun.runner.job.stopping import StopRequest, announcement

INTERRUPTED = 130
"""Exit code of a launch that was asked to stop."""
_SAME_REQUEST_SECONDS = 1.0
"""Signals that follow the first within this time are the same request: a closed terminal sends SIGHUP twice,
and wrappers such as `uv run` forward a Ctrl-C that the whole process group has already received."""


_NUMBERS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


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
    """Asks the run to stop on the first signal, with `seconds` to save; the next signal kills everything."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def on_signal() -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            say(announcement(stop.moment, stop.step, seconds))
            stop.ask()
            if stop.will_save:
                loop.call_later(seconds, give_up)
            else:
                task.cancel()
        elif loop.time() > first + _SAME_REQUEST_SECONDS:
            kill_children()
            os._exit(INTERRUPTED)

    def give_up() -> None:
        if not task.done():
            say(f"not finished within {seconds:g} s (checkpoint.stop_timeout): ending now")
            task.cancel()

    for number in _NUMBERS:
        # `nohup` starts a process with SIGHUP ignored, which has to stay so.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
