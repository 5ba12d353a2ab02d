"""One node of a submitted job's own Ray cluster, from its start to its end.

    attempt-XXXX/token     made by the attempt: the token of this Ray cluster
    attempt-XXXX/head      made by node 0: the address of Ray's head
    attempt-XXXX/taken     made by a node that gets SIGTERM or SIGUSR1, or by `rlrun release`: a scheduler
                           wants the machines back
    attempt-XXXX/end       made by the attempt: every node ends

SIGTERM and SIGUSR1 are blocked in the mask of this process, and so in everything that Ray starts: masks are
inherited, and neither Ray 2.60 nor our processes unblock them. A scheduler sends its signals to all processes
of a step at once. Ray would end at SIGTERM, before the driver has saved.
"""

import os
import secrets
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from rlrun.runner.cluster.ray_variables import RAY_SERVERS
from rlrun.runner.cluster.scratch import remove_leftovers, scratch_folder
from rlrun.runner.host.atomic_files import write_text
from rlrun.runner.host.network import free_port
from rlrun.runner.host.printed_text import print_text
from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.specs.safe_python import own_python

TOKEN, HEAD, TAKEN, END = "token", "head", "taken", "end"
_SHIELDED = (signal.SIGTERM, signal.SIGUSR1)
_POLL_S = 0.3
_START_SECONDS = 300.0
"""How long a node waits for the head of its cluster."""
_RELEASE_POLL_S = 0.2


def run_node(control: Path, rank: int, head: str, cpus: int, gpus: int) -> int:
    """Runs Ray on this node until the attempt ends, and removes what Ray leaves.

    `control` is the attempt's folder, and `head` the address of node 0 as the other nodes reach it. Returns
    an exit code: 0, or 1 if Ray ended by itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SHIELDED)
    remove_leftovers()
    with scratch_folder() as scratch:
        command = _ray_command(control, rank, head, scratch.ray)
        if command is None:
            return 1
        os.environ.update(ray_variables(control))
        command += [f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--disable-usage-stats", "--block"]
        ray = subprocess.Popen(command, start_new_session=True)
        scratch.note_session(ray.pid)
        at_end = _watch(control, ray)
    # the end of the block has killed it with all that it started
    ray.kill()
    ray.wait()
    return 0 if at_end else 1


def ray_variables(control: Path) -> dict[str, str]:
    """Returns the variables of a process that belongs to the attempt's Ray cluster."""
    token = (control / TOKEN).read_text()
    return RAY_SERVERS | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def make_token(control: Path) -> None:
    """Writes the token of an attempt's Ray cluster; only this user can read it."""
    write_text(control / TOKEN, secrets.token_hex(32))


def _ray_command(control: Path, rank: int, head: str, folder: Path) -> list[str] | None:
    """Returns the command that starts Ray; None if the attempt ends before the head has started."""
    start = own_python("-m", "ray.scripts.scripts", "start")
    start += [f"--node-ip-address={_own_address(head)}", f"--temp-dir={folder}"]
    if rank == 0:
        port = free_port(head)
        write_text(control / HEAD, f"{head}:{port}")
        return [*start, "--head", f"--port={port}", "--include-dashboard=false"]
    address = _wait_for_head(control)
    return None if address is None else [*start, f"--address={address}"]


def _own_address(head: str) -> str:
    """Returns the address of this node on the way to node 0; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((head, 9))
        return str(way.getsockname()[0])


def _wait_for_head(control: Path) -> str | None:
    """Returns the address of Ray's head when it accepts connections."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and not has_file(control, END):
        with suppress(OSError):
            address = (control / HEAD).read_text()
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=5.0).close()
            return address
        _note_signals(control)
    return None


def _watch(control: Path, ray: "subprocess.Popen[bytes]") -> bool:
    """Returns when the attempt has ended, or Ray has: whether it was the attempt."""
    while not has_file(control, END):
        if ray.poll() is not None:
            print_text(f"Ray ended with {ray.returncode}", flush=True)
            return False
        _note_signals(control)
    return True


def has_file(control: Path, name: str) -> bool:
    """Returns whether a file exists in the attempt's folder, or the folder itself is gone.

    Lists the folder: NFS remembers for up to a minute that a name did not exist.
    """
    try:
        return name in os.listdir(control)  # noqa: PTH208  (names only)
    except FileNotFoundError:
        return True


def _note_signals(control: Path) -> None:
    """Waits a moment for a scheduler's signal; the first one is noted for the attempt."""
    received = signal.sigtimedwait(_SHIELDED, _POLL_S)
    if received is not None:
        print_text(f"got {signal.Signals(received.si_signo).name}", flush=True)
        with suppress(OSError):
            (control / TAKEN).touch()


def release_machine(folder: SubmissionFolder, seconds: float) -> bool:
    """Asks the attempt that runs to save, and waits until it has ended.

    Returns whether it has within `seconds`.
    """
    controls = folder.controls()
    for control in controls:
        with suppress(OSError):  # it may have ended since
            (control / TAKEN).touch()
    deadline = time.monotonic() + seconds
    while any(control.exists() for control in controls):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_RELEASE_POLL_S)
    return True
