"""The sandbox of an agent's program: the command line that starts it there, and the one that ends it.

command, folder, variables, limits ──▶ contained ──▶ command line and variables of the process on the host

Every sandbox keeps the folder of the execution at its path, where the program starts and may write.
"""

import csv
import io
import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rlrun.plugins.rollouts.agent.program_limits import MIB, ProgramLimits
from rlrun.specs.sections.section import Section

Kind = Literal["bubblewrap", "docker", "podman", "gvisor", "apptainer"]
_PROGRAMS = {"bubblewrap": "bwrap", "gvisor": "docker"}
_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/group", "/etc/hosts"),
    *(
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/etc/nsswitch.conf",
        "/etc/passwd",
        "/etc/resolv.conf",
        "/etc/ssl",
    ),
)
"""What a program sees of the host besides /usr."""
_IN_MEMORY = ("/tmp", "/dev/shm")
"""Folders of bubblewrap whose files are in memory."""
_OF_HOST = frozenset(("PATH", "HOME", "SHELL", "TMPDIR", "USER", "LOGNAME", "TERM"))
"""Variables that mean nothing in a container."""
_CLIENT = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "XDG_RUNTIME_DIR")
"""How the names of variables begin that clients of container engines read."""
_TRIAL_SECONDS = 30.0


class ProgramSandbox(Section):
    """What isolates the programs of an agent from the host."""

    type: Literal["none", Kind] = "none"
    """`none`: a program runs as the job's user, with this user's files. `bubblewrap`: in namespaces of its
    own, with a few read-only folders of the host. `docker`, `podman`, `apptainer`: in a container of `image`;
    `gvisor` in one of docker with the runtime `runsc`."""
    image: str | None = Field(default=None, pattern=r"^[^-\s]")
    """The image of a container; the host must have it, or be able to pull it."""
    read_only: tuple[str, ...] = ()
    """Further files and folders of the host that the program may read, under the same path."""
    writable: tuple[str, ...] = ()
    """Further files and folders of the host that the program may write. All executions share them."""

    @model_validator(mode="after")
    def _image_of_a_container(self) -> "ProgramSandbox":
        if (self.image is None) == (self.type not in ("none", "bubblewrap")):
            wants = "needs an image" if self.image is None else "has no image"
            raise ValueError(f'type = "{self.type}" {wants}')
        if self.type == "none" and (self.read_only or self.writable):
            raise ValueError(
                "without a sandbox a program sees all files: read_only and writable need a `type`"
            )
        if relative := [path for path in (*self.read_only, *self.writable) if not Path(path).is_absolute()]:
            raise ValueError(f"{relative[0]} is not an absolute path")
        if any(not os.path.normpath(path).strip("/") for path in self.writable):
            raise ValueError("writable has all files of the host, as without a sandbox: name what it needs")
        return self

    def described(self) -> str:
        """Returns the sandbox in words, for the plan."""
        image = f" with the image {self.image}" if self.image else ""
        return f"{self.type}{image}" if self.type != "none" else "the job's user, without a sandbox"


HOST = ProgramSandbox()


@dataclass(frozen=True, slots=True)
class Contained:
    """How the host starts and ends a program in its sandbox."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """The variables of the process on the host."""
    clean_up: Sequence[str] = ()
    """A command that removes what outlives that process; empty if nothing does."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of an agent, before it is contained."""

    command: Sequence[str]
    folder: str
    """The empty folder of its execution."""
    environment: Mapping[str, str]
    limits: ProgramLimits
    name: str
    """Unique on the host."""

    @property
    def shares_network(self) -> bool:
        """Whether the policy's endpoint is on the loopback interface, which only the host's network has."""
        host = urlsplit(self.environment.get("OPENAI_BASE_URL", "http://127.0.0.1")).hostname or ""
        return ipaddress.ip_address(host).is_loopback


def contained(sandbox: ProgramSandbox, program: Program) -> Contained:
    """Returns how to start a program in a sandbox."""
    if sandbox.type == "none":
        return Contained(program.command, program.environment)
    if sandbox.type == "bubblewrap":
        return _in_bubblewrap(sandbox, program)
    return _in_apptainer(sandbox, program) if sandbox.type == "apptainer" else _in_container(sandbox, program)


def _in_bubblewrap(sandbox: ProgramSandbox, program: Program) -> Contained:
    read_only, limit = [sys.prefix, sys.base_prefix, *sandbox.read_only], program.limits.file * MIB
    arguments = [
        *("bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL"),  # root keeps them otherwise, and could make read-only mounts writable
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"),
        *(part for path in _SYSTEM for part in ("--ro-bind-try", path, path)),
        *(part for path in _IN_MEMORY for part in ("--size", str(limit), "--tmpfs", path)),
        *(part for path in read_only for part in ("--ro-bind", path, path)),
        *(part for path in (*sandbox.writable, program.folder) for part in ("--bind", path, path)),
        *("--remount-ro", "/dev", "--remount-ro", "/"),  # else they are files in memory without a limit
        *("--chdir", program.folder, "--", *program.command),
    ]
    inside = {**program.environment, "HOME": program.folder, "TMPDIR": "/tmp"}
    return Contained(_limited(arguments, program.limits), inside)


def _in_container(sandbox: ProgramSandbox, program: Program) -> Contained:
    engine, limits = _PROGRAMS.get(sandbox.type, sandbox.type), program.limits
    passed = sorted(program.environment.keys() - _OF_HOST)
    arguments = [
        *(engine, "run", "--rm", "--init", "--interactive", "--name", program.name),
        *(("--runtime", "runsc") if sandbox.type == "gvisor" else ()),
        *(("--network", "host") if program.shares_network else ()),
        *("--memory", f"{limits.memory}m", "--memory-swap", f"{limits.memory}m"),
        *("--pids-limit", str(limits.processes)),
        *("--ulimit", f"fsize={limits.file * MIB}", "--ulimit", "core=0"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *_mounts(sandbox.read_only, "ro"),
        *_mounts((*sandbox.writable, program.folder)),
        *("--workdir", program.folder, "--env", f"HOME={program.folder}"),
        *(part for name in passed for part in ("--env", name)),  # keys are not in the command line
        *(str(sandbox.image), *program.command),
    ]
    client = {name: value for name, value in os.environ.items() if name.startswith(_CLIENT)}
    return Contained(arguments, {**client, **program.environment}, (engine, "rm", "--force", program.name))


def _in_apptainer(sandbox: ProgramSandbox, program: Program) -> Contained:
    arguments = [
        *("apptainer", "exec", "--containall", "--home", program.folder, "--pwd", program.folder),
        *_mounts(sandbox.read_only, "ro"),
        *_mounts(sandbox.writable),
        *(str(sandbox.image), *program.command),
    ]
    inside = {
        f"APPTAINERENV_{name}": program.environment[name] for name in program.environment.keys() - _OF_HOST
    }
    return Contained(_limited(arguments, program.limits), {**program.environment, **inside})


def _mounts(paths: Sequence[str], *options: str) -> list[str]:
    """Returns the arguments that show paths of the host in a container: rows of CSV, so that names may have
    colons and commas. Engines refuse paths that do not exist; with `--volume` docker would make folders.
    """
    arguments = []
    for path in paths:
        row = io.StringIO()
        fields = ("type=bind", f"source={path}", f"destination={path}", *options)
        csv.writer(row, lineterminator="").writerow(fields)
        arguments += ["--mount", row.getvalue()]
    return arguments


def _limited(command: Sequence[str], limits: ProgramLimits) -> list[str]:
    """Returns a command whose processes have the limit on files from their start; sh counts 512 bytes."""
    return ["sh", "-c", f'ulimit -c 0; ulimit -f {limits.file * MIB // 512}; exec "$@"', "sh", *command]


def problem_of(sandbox: ProgramSandbox) -> str:
    """Returns why this host cannot run programs in this sandbox, with the cure; empty if it can."""
    shown = (*sandbox.read_only, *sandbox.writable)
    if missing := [path for path in shown if not Path(path).exists()]:
        return f"there is no {missing[0]} on this host: create it, or remove it from read_only and writable"
    return "" if sandbox.type == "none" else problem_of_kind(sandbox.type)


def problem_of_kind(kind: Kind) -> str:
    """Returns why this host has no sandboxes of a kind, with the cure; empty if it has."""
    program = _PROGRAMS.get(kind, kind)
    if shutil.which(program) is None:
        package = "bubblewrap" if program == "bwrap" else program
        return f"{program} is not installed: install the package {package}, or choose another sandbox"
    trial = {
        "bwrap": [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"],
        "apptainer": [program, "version"],
    }.get(program, [program, "info", "--format", "{{json .}}"])
    try:
        ended = subprocess.run(trial, capture_output=True, timeout=_TRIAL_SECONDS, check=False, text=True)
    except subprocess.TimeoutExpired:
        return f"{' '.join(trial[:2])} did not end within {_TRIAL_SECONDS:g} s: restart its service"
    if ended.returncode:
        cure = {
            "bwrap": "it needs root or user namespaces: sysctl user.max_user_namespaces=10000",
            "docker": "start its service, and let this user ask it (the group docker)",
        }.get(program, f"see {program}'s own messages")
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{program} cannot start programs here ({said}): {cure}"
    if kind == "gvisor" and "runsc" not in json.loads(ended.stdout).get("Runtimes", {}):
        return "docker has no runtime runsc: install gVisor, and run `runsc install`"
    return ""
