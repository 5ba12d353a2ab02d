"""Starts a program in its jail, feeds it, reads its output, and ends it."""

import marshal
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlrun.plugins.rewards.code import cgroup

LAUNCH = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[4])!r}); "
    "from rlrun.plugins.rewards.code.jail.launcher import main; main()"
)
"""The launcher needs no site-packages, and starts without them (`-S`) in a third of the time."""
CHUNK = 1 << 16
PATIENCE = 2.0
"""Seconds that a launcher has to end its processes, before it is killed itself."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended."""

    output: bytes
    """Its standard output."""
    problem: str
    """Empty if it ended by itself with status 0; else how it ended, with its last line of error output."""
    reply: bytes = b""
    """The bytes that it wrote to descriptor 4, if it was given a request."""


class Channel:
    """Descriptors 3 and 4 of a program: it reads from the first, and writes to the second."""

    def __init__(
        self, inside: tuple[int, ...] = (), feed: int | None = None, reply: int | None = None
    ) -> None:
        """`inside` are the program's ends of the pipes; `feed` and `reply` are the ends in this process."""
        self.inside = inside
        self.feed = feed
        self.reply = reply

    @classmethod
    def to_here(cls) -> Self:
        """Returns a channel between a program and this process."""
        (read, feed), (reply, write) = os.pipe(), os.pipe()
        return cls((read, write), feed, reply)

    @classmethod
    def between(cls) -> tuple[Self, Self]:
        """Returns the channels of two programs, each of which reads the bytes that the other one writes."""
        (first_reads, second_writes), (second_reads, first_writes) = os.pipe(), os.pipe()
        return cls((first_reads, first_writes)), cls((second_reads, second_writes))

    def close_inside(self) -> None:
        """Closes this process's copies of the program's ends, once it has started or has failed to start.

        While a copy is open, a pipe never reports its end.
        """
        for descriptor in self.inside:
            os.close(descriptor)
        self.inside = ()


class Jailed:
    """One program and its launcher. On exit from the context, all processes of the jail have ended."""

    def __init__(
        self,
        settings: Mapping[str, object],
        stdin: bytes,
        channel: Channel,
        request: bytes = b"",
        group: Path | None = None,
    ) -> None:
        """Starts the launcher with `settings`, in the cgroup `group` if there is one."""
        self.problem = ""
        self.has_ended = False
        message = marshal.dumps({**settings, "channel": channel.inside})
        try:
            self._process, self._control = _launch(channel.inside)
        finally:
            channel.close_inside()
        if group is not None:  # in time: the launcher starts no process before it has its settings
            self._join(group)
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._output, self._errors = process.stdout.fileno(), process.stderr.fileno()
        self._reply = channel.reply
        self._end = os.pidfd_open(process.pid)
        self._feeds = {self._control: memoryview(len(message).to_bytes(8, "big") + message)}
        self._feeds[os.dup(process.stdin.fileno())] = memoryview(stdin)
        process.stdin.close()
        if channel.feed is not None:
            self._feeds[channel.feed] = memoryview(request)
        reads = [self._output, self._errors, *([self._reply] if self._reply is not None else [])]
        self._received = {descriptor: bytearray() for descriptor in reads}

    def _join(self, group: Path) -> None:
        try:
            cgroup.add(group, self._process.pid)
        except OSError:
            os.close(self._control)
            with self._process:
                self._process.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the program if it still runs: the launcher kills its processes when `_control` closes."""
        for descriptor in {*self._feeds, self._control, self._end}:
            os.close(descriptor)
        with self._process:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        if self._reply is not None:
            os.close(self._reply)

    @property
    def printed(self) -> int:
        """Number of bytes read so far."""
        return sum(map(len, self._received.values()))

    def ending(self) -> Ending:
        """Returns how the program ended, after it has."""
        received = {descriptor: bytes(data) for descriptor, data in self._received.items()}
        problem = self.problem or _problem(self._process.returncode, received[self._errors])
        return Ending(
            received[self._output], problem, received[self._reply] if self._reply is not None else b""
        )

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers all descriptors to wait for."""
        for descriptor in self._feeds:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_WRITE, self)
        for descriptor in self._received:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ, self)
        selector.register(self._end, selectors.EVENT_READ, self)

    def attend(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Reads from or writes to a descriptor that is ready."""
        if descriptor == self._end:
            self.has_ended = True
            for readable in self._received:  # the pipes may still hold output
                while self._take(readable):
                    pass
            selector.unregister(descriptor)
        elif descriptor in self._feeds:
            self._feed(selector, descriptor)
        elif not self._take(descriptor):
            selector.unregister(descriptor)

    def _take(self, descriptor: int) -> bool:
        """Reads once from a descriptor; returns whether it gave any bytes."""
        with suppress(BlockingIOError):
            data = os.read(descriptor, CHUNK)
            self._received[descriptor] += data
            return bool(data)
        return False

    def _feed(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Writes as many bytes as the pipe takes, and closes it after the last or when its reader has gone.

        The control pipe stays open, since closing it ends the program.
        """
        feed = self._feeds[descriptor]
        try:
            feed = feed[os.write(descriptor, feed[:CHUNK]) :] if feed else feed
        except BrokenPipeError:
            feed = feed[:0]
        self._feeds[descriptor] = feed
        if not feed:
            selector.unregister(descriptor)
            del self._feeds[descriptor]
            if descriptor != self._control:
                os.close(descriptor)


def attend(jailed: Sequence[Jailed], seconds: float, most_output: int) -> None:
    """Feeds and reads all programs until the first one ends or any of them exceeds a limit.

    An exceeded limit is recorded as the first program's problem.
    """
    deadline = time.monotonic() + seconds
    first = jailed[0]
    with selectors.DefaultSelector() as selector:
        for program in jailed:
            program.register(selector)
        while not first.has_ended and not first.problem:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                key.data.attend(selector, key.fd)
            if any(program.printed > most_output for program in jailed):
                first.problem = f"printed more than {most_output} bytes"
            elif time.monotonic() >= deadline and not first.has_ended:
                first.problem = f"took longer than {seconds:g} s"


def _launch(inside: Sequence[int]) -> "tuple[subprocess.Popen[bytes], int]":
    """Starts a launcher with the program's descriptors; returns it and our end of its control pipe."""
    reading_end, writing_end = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCH, str(reading_end), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[reading_end, *inside],
            start_new_session=True,
            env={},
        )
    except BaseException:
        os.close(writing_end)
        raise
    finally:
        os.close(reading_end)
    return process, writing_end


def _problem(status: int, errors: bytes) -> str:
    last = errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
    if status == 0:
        return ""
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    return f"{how}: {last}" if last else how
