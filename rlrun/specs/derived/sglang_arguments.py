"""Names of the arguments of SGLang's programs, asked of what is installed and remembered.

Importing SGLang takes seconds; the answer is kept by interpreter and installation in `~/.cache/rlrun`
(`RLRUN_CACHE` moves it), and read again when another version is installed.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rlrun.specs.cache import cache_folder


@dataclass(frozen=True, slots=True)
class Program:
    """One of them."""

    what: str
    """As messages call it."""
    distribution: str
    module: str
    """Where its arguments are defined."""
    arguments: str
    """The class in it that adds them to a parser."""
    own: Mapping[str, str | None]
    """Arguments that rlrun sets, and the key that decides them; None: nothing a spec says."""


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
}
_OF_ROUTER = {
    "host": None,
    "port": None,
    "api-key": None,
    "worker-urls": None,
    "request-timeout-secs": "rollout.request_timeout",
    "max-concurrent-requests": "rollout.max_concurrency",
    # rlrun watches engines, starts them again, and asks again by itself
    "disable-health-check": None,
    "disable-circuit-breaker": None,
    "disable-retries": None,
    # other ways to find engines, and other kinds of them
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
_SECONDS = 180.0


def flag_name(name: str) -> str:
    """A key of `[engine.sglang]` as the command line has it: `mem_fraction` -> `mem-fraction`."""
    return name.replace("_", "-")


def installed_arguments(
    python: str, environment: Mapping[str, str], program: Program = SERVER
) -> list[str] | None:
    """All names that the program of this interpreter takes; None where it has none, or cannot say.

    That is no error here: a spec may be checked on another host than the one that runs it.
    """
    where = _ask(python, _WHERE.format(program.distribution), environment)
    if where is None:
        return None
    digest = sha256(f"{python} {where}".encode()).hexdigest()[:16]
    kept = cache_folder() / f"{program.distribution}-{digest}.json"
    if (known := cached_names(kept)) is not None:
        return known
    answer = _ask(python, _NAMES.format(program.module, program.arguments), environment)
    if answer is None:
        return None
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(answer)
    part.replace(kept)
    return list(json.loads(answer))


def cached_names(kept: Path) -> list[str] | None:
    """Returns the names that an earlier call kept; None where there are none, or the file is broken."""
    try:
        names = json.loads(kept.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _ask(python: str, code: str, environment: Mapping[str, str]) -> str | None:
    """The last line that `code` prints."""
    try:
        done = subprocess.run(
            [python, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().rpartition("\n")[2] or None
