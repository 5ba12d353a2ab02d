"""Names of an installed SGLang server's arguments, asked of the server itself and remembered.

Importing SGLang takes seconds; the answer is kept by interpreter and installation in `~/.cache/rlrun`
(`RLRUN_CACHE` moves it), and read again when another version is installed.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from hashlib import sha256

from rlrun.specs.cache import cache_folder

OWN = {
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
}
"""Arguments that rlrun sets, and the key that decides them; None: nothing a spec says."""

_WHERE = (
    "import importlib.metadata as m; d = m.distribution('sglang'); print(d.version, d.locate_file('sglang'))"
)
_NAMES = (
    "import argparse, json; from sglang.srt.server_args import ServerArgs; p = argparse.ArgumentParser(); "
    "ServerArgs.add_cli_args(p); "
    "print(json.dumps(sorted(o[2:] for a in p._actions for o in a.option_strings if o.startswith('--'))))"
)
_SECONDS = 180.0


def spelled(name: str) -> str:
    """A key of `[engine.sglang]` as the command line has it: `mem_fraction` -> `mem-fraction`."""
    return name.replace("_", "-")


def installed_arguments(python: str, environment: Mapping[str, str]) -> list[str] | None:
    """All names that the server of this interpreter takes; None where it has none, or cannot say.

    That is no error here: a spec may be checked on another host than the one that runs it.
    """
    where = _ask(python, _WHERE, environment)
    if where is None:
        return None
    kept = cache_folder() / f"sglang-{sha256(f'{python} {where}'.encode()).hexdigest()[:16]}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    answer = _ask(python, _NAMES, environment)
    if answer is None:
        return None
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(answer)
    part.replace(kept)
    return list(json.loads(answer))


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
