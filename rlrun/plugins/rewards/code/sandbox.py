"""Runs programs locked in: `jail` does the locking, this module the feeding and the killing."""

import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

JAIL = Path(__file__).with_name("jail.py")
JAIL_FAILED = 113
CHUNK = 1 << 16
MIB = 1 << 20

_numbers = count()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use."""

    seconds: float
    """Of wall-clock time."""
    memory: int
    """MiB of address space, for each process."""
    processes: int
    """Processes and threads."""
    scratch: int
    """MiB of files."""
    output: int
    """Bytes it may print; more ends it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended."""

    output: bytes
    """What it printed to standard output."""
    problem: str
    """Empty where it ended by itself with status 0; else how it ended, with its last line of error output."""


class SandboxError(RuntimeError):
    """No program can be locked in on this machine."""


class Sandbox:
    """Runs programs one at a time."""

    def __init__(self, limits: Limits) -> None:
        """Tries itself out; SandboxError says what this machine does not allow."""
        self._limits = limits
        self._folder = _mount_point()
        ending = self.run("print('ready')", b"")
        if ending.output != b"ready\n":
            raise SandboxError(
                f"programs cannot be locked in on this machine ({ending.problem or 'no output'}); that "
                "needs Linux 5.12 and root, or user namespaces (sysctl user.max_user_namespaces)"
            )

    def run(self, program: str, stdin: bytes) -> Ending:
        """The program's ending, at most `limits.seconds` later and with all its processes gone."""
        read_end, write_end = os.pipe()
        command = [sys.executable, "-I", "-S", str(JAIL), json.dumps(self._jail_limits()), str(read_end)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[read_end],
            start_new_session=True,
        ) as process:
            os.close(read_end)
            try:
                output, errors, problem = _talk(process, write_end, program.encode(), stdin, self._limits)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return Ending(output, problem or _problem(process.returncode, errors))

    def _jail_limits(self) -> dict[str, object]:
        limits = self._limits
        return {
            "folder": str(self._folder),
            "python": [sys.executable, *_python_folders()],
            "memory": limits.memory * MIB,
            "cpu": int(limits.seconds) + 1,
            "processes": limits.processes,
            "scratch": limits.scratch * MIB,
            "number": next(_numbers) % 10_000,
        }


def _mount_point() -> Path:
    """An empty folder that every jail mounts its own root on, for itself alone; one a user."""
    folder = Path(tempfile.gettempdir()) / f"rlrun-jail-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise SandboxError(f"{folder} belongs to somebody else; remove it")
    return folder


def _python_folders() -> list[str]:
    """Where the interpreter, its library and its packages lie."""
    paths = sysconfig.get_paths()
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, paths["stdlib"], paths["purelib"]]
    folders.append(str(Path(sys.executable).resolve().parent))
    unique = sorted({str(Path(folder)) for folder in folders})
    system = ("/usr", "/lib", "/bin")
    inside = [f for f in unique if not any(f != g and f.startswith(g + "/") for g in unique)]
    return [folder for folder in inside if not folder.startswith(system)]


def _talk(
    process: "subprocess.Popen[bytes]", program_end: int, program: bytes, stdin: bytes, limits: Limits
) -> tuple[bytes, bytes, str]:
    """Feed the program and its input: its output, its error output, and why it was cut off."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    feeds = {program_end: program, os.dup(process.stdin.fileno()): stdin}
    process.stdin.close()
    taken: dict[int, bytes] = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    with selectors.DefaultSelector() as selector:
        for descriptor in feeds:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_WRITE)
        for descriptor in taken:
            selector.register(descriptor, selectors.EVENT_READ)
        problem = ""
        while any(descriptor in selector.get_map() for descriptor in taken) and not problem:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if key.fd in feeds:
                    _feed(selector, key.fd, feeds)
                elif data := os.read(key.fd, CHUNK):
                    taken[key.fd] += data
                else:
                    selector.unregister(key.fd)
            if sum(map(len, taken.values())) > limits.output:
                problem = f"printed more than {limits.output} bytes"
            elif time.monotonic() >= deadline:
                problem = f"took longer than {limits.seconds:g} s"
        for descriptor in feeds:
            if descriptor in selector.get_map():
                os.close(descriptor)
    return taken[process.stdout.fileno()], taken[process.stderr.fileno()], problem


def _feed(selector: selectors.BaseSelector, descriptor: int, feeds: dict[int, bytes]) -> None:
    """Write what the pipe takes; close it at the end, or when nobody reads any more."""
    try:
        written = os.write(descriptor, feeds[descriptor][:CHUNK]) if feeds[descriptor] else 0
    except BrokenPipeError:
        written = len(feeds[descriptor])
    feeds[descriptor] = feeds[descriptor][written:]
    if not feeds[descriptor]:
        selector.unregister(descriptor)
        os.close(descriptor)


def _problem(status: int, errors: bytes) -> str:
    last = errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
    if status == 0:
        return ""
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    return f"{how}: {last}" if last else how
