"""Reads the names of the arguments that the installed SGLang server and router accept.

Importing SGLang takes seconds, so the names are cached in `~/.cache/rlrun` (or `RLRUN_CACHE`), one file per
interpreter and installed version. The interpreter runs with this process's variables, in the root folder:
nothing that the spec sets, and nothing beside the spec, decides what it imports.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rlrun.models.cache import private_folder
from rlrun.models.json_files import read_json
from rlrun.specs.safe_python import SAFE_PATH


@dataclass(frozen=True, slots=True)
class Program:
    """A program of SGLang, and which of its arguments rlrun sets."""

    what: str
    """Name of the program in messages."""
    distribution: str
    """Name of the distribution on PyPI."""
    module: str
    """Module that defines the arguments."""
    arguments: str
    """Class in that module whose `add_cli_args` adds the arguments to a parser."""
    own: Mapping[str, str | None]
    """Arguments that only rlrun sets, each with the spec key to use instead; None if no key sets it."""


_OF_SERVER = {
    "model-path": "model.path",
    "model": "model.path",
    "tp-size": "engine.tensor",
    "tp": "engine.tensor",
    "tensor-parallel-size": "engine.tensor",
    "host": None,
    "port": "engine.port",
    "nnodes": "engine.tensor",
    "node-rank": None,
    "dist-init-addr": None,
    "base-gpu-id": None,
    "gpu-id-step": None,
    "device": "cluster.gpus_per_node",
    "dtype": "engine.dtype",
    "max-running-requests": "engine.max_running",
    "max-total-tokens": "engine.max_cache_tokens",
    "random-seed": "seed",
    "context-length": None,
    "api-key": None,
    "admin-api-key": None,
    "config": None,
    "enable-return-routed-experts": "trainer.moe.routing_replay",
    "enable-fp32-lm-head": "trainer.head_dtype",
    "enable-draft-weights-cpu-backup": None,
    "disaggregation-mode": "role in [[engine.groups]]",
    "disaggregation-bootstrap-port": None,
    "speculative-algorithm": "engine.speculative.algorithm",
    "speculative-draft-model-path": "engine.speculative.draft_model",
    "speculative-draft-model": "engine.speculative.draft_model",
    "speculative-num-draft-tokens": "engine.speculative.draft_tokens",
    "speculative-dflash-block-size": "engine.speculative.draft_tokens",
}
_OF_ROUTER = {
    "host": None,
    "port": None,
    "api-key": None,
    "worker-urls": None,
    "request-timeout-secs": "rollout.request_timeout",
    "max-concurrent-requests": "rollout.max_concurrency",
    # rlrun itself watches engines, restarts them and repeats requests; the router must not do so as well
    "disable-health-check": None,
    "disable-circuit-breaker": None,
    "disable-retries": None,
    # other ways to find engines, and kinds of engines that rlrun does not start
    "service-discovery": None,
    "pd-disaggregation": None,
    "prefill": None,
    "decode": None,
    "mini-lb": None,
    "dp-aware": None,
    "enable-igw": None,
    "backend": None,
}
SERVER = Program("SGLang server", "sglang", "sglang.srt.server_args", "ServerArgs", _OF_SERVER)
ROUTER = Program("router", "sglang-router", "sglang_router.router_args", "RouterArgs", _OF_ROUTER)

_WHERE = "import importlib.metadata as m; d = m.distribution({0!r}); print(d.version, d.locate_file({0!r}))"
_NAMES = (
    "import argparse, json; from {} import {} as Arguments; p = argparse.ArgumentParser(); "
    "Arguments.add_cli_args(p); "
    "print(json.dumps(sorted(o[2:] for a in p._actions for o in a.option_strings if o.startswith('--'))))"
)
_TIMEOUT_SECONDS = 180.0


def flag_name(name: str) -> str:
    """Returns a key of `[engine.sglang]` as its command line flag: `mem_fraction` -> `mem-fraction`."""
    return name.replace("_", "-")


def installed_arguments(python: str, program: Program = SERVER) -> list[str] | None:
    """Returns the names of all arguments of the program that is installed for the interpreter `python`.

    Runs the interpreter: call it only where the user has allowed that.

    None if the program is not installed or fails. This is not an error, because a spec may be checked on
    another host than the one that runs it.
    """
    installation = _last_line(python, _WHERE.format(program.distribution))
    if installation is None:
        return None
    digest = sha256(f"{python} {installation}".encode()).hexdigest()[:16]
    try:
        cache_file = private_folder() / f"{program.distribution}-{digest}.json"
    except OSError:  # no home, or others could write it: what uses the cache for code reports that
        cache_file = None
    if cache_file is not None and (names := cached_names(cache_file)) is not None:
        return names
    answer = _last_line(python, _NAMES.format(program.module, program.arguments))
    if answer is None:
        return None
    if cache_file is not None:
        partial_file = cache_file.with_suffix(f".{os.getpid()}")  # another process may write it as well
        partial_file.write_text(answer)
        partial_file.replace(cache_file)
    return list(json.loads(answer))


def why_not_importable(python: str, program: Program = SERVER) -> str | None:
    """Returns why an interpreter cannot start the program: it is not installed, or fails to import.

    Runs the interpreter, as `installed_arguments` does, whose cache answers where it has worked before.
    """
    if installed_arguments(python, program) is not None:
        return None
    if _last_line(python, _WHERE.format(program.distribution)) is None:
        return f"{program.distribution} is not installed"
    error = _run(python, f"import {program.module}").stderr.strip().rpartition("\n")[2]
    return f"{program.distribution} is installed and does not import ({error[:200]})"


def cached_names(cache_file: Path) -> list[str] | None:
    """Returns the names in a cache file; None if the file does not exist or is broken."""
    try:
        names = read_json(cache_file)
    except (OSError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _last_line(python: str, code: str) -> str | None:
    """Runs `code` and returns the last line that it prints; None if it fails or prints nothing."""
    try:
        process = _run(python, code)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if process.returncode else process.stdout.strip().rpartition("\n")[2] or None


def _run(python: str, code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, "-c", code],
        env=os.environ | SAFE_PATH,
        cwd="/",  # before Python 3.11, `-c` begins the path with the current folder
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
