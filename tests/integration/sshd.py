"""Real SSH servers of OpenSSH, with keys of their own: one on loopback, or one on each machine."""

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.integration import machines
from tests.integration.machines import NODES, Machines
from tests.waiting import wait_until

_NEEDED = ("sshd", "ssh", "ssh-keygen")
_PACKAGES = "openssh-server openssh-client"
_SSHD = shutil.which("sshd", path=machines.PATH)
_SERVER = """
Port {port}
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
# Variables of this file reach every session, as those of a login do on a real machine.
SetEnv {variables}
"""
_CLIENT = """
Port {port}
IdentityFile {folder}/user
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


def why_not() -> str | None:
    """Returns why there can be no SSH server here; None if there can be."""
    missing = [name for name in _NEEDED if shutil.which(name, path=machines.PATH) is None]
    return f"no {', '.join(missing)}: apt install {_PACKAGES}" if missing else None


def why_no_machines() -> str | None:
    """Returns why there can be no machines with SSH servers here; None if there can be."""
    return machines.why_not(_NEEDED, _PACKAGES)


class Keys:
    """The keys and settings of servers and their clients, in a folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        self.options = ["-F", str(folder / "client")]
        (folder / "client").write_text(_CLIENT.format(folder=folder, port=port))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd changes to it before it knows a user

    def server(self, address: str, variables: dict[str, str]) -> list[str]:
        """Returns the command of a server that stays in the foreground."""
        settings = self.folder / f"server-{address}"
        values = " ".join(f'"{name}={value}"' for name, value in variables.items())
        settings.write_text(
            _SERVER.format(folder=self.folder, address=address, port=self._port, variables=values)
        )
        assert _SSHD is not None, "why_not says so"
        return [_SSHD, "-D", "-f", str(settings), "-E", str(self.folder / f"{address}.log")]

    def answers(self, host: str, *prefix: str) -> bool:
        """Returns whether a host runs commands."""
        command = [*prefix, "ssh", *self.options, "-o", "BatchMode=yes", host, "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class SshMachines(Machines):
    """The machines with an SSH server on each node, until `stop`."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables
        super().__init__()

    def start(self) -> None:
        """Starts the servers."""
        self.keys = Keys(self.folder, 22)
        for node, address in NODES.items():
            self.serve(node)
            wait_until(lambda address=address: self.keys.answers(address, *self.enter()), node, self.log)

    def serve(self, node: str) -> None:
        """Starts the server of a node."""
        server = self.keys.server(NODES[node], self._variables)
        self._held.append(subprocess.Popen([*self.enter(node), *server], stdin=subprocess.DEVNULL))


class LoopbackServer:
    """One SSH server on loopback, as this user."""

    def __init__(self, port: int, variables: dict[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ssh"))
        self.keys = Keys(self._folder, port)
        self._process = subprocess.Popen(self.keys.server("127.0.0.1", variables), stdin=subprocess.DEVNULL)
        wait_until(lambda: self.keys.answers("127.0.0.1"), "the SSH server", self.log)

    def log(self) -> str:
        """What the server logged."""
        with suppress(OSError):
            return (self._folder / "127.0.0.1.log").read_text()
        return ""

    def stop(self) -> None:
        """Ends the server."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
