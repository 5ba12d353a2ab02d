"""An SGLang server's command line and environment; pure."""

import json
from collections.abc import Mapping
from typing import Any

from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.specs.sglang_arguments import spelled

# The server dies with the process that started it: asked of the kernel before it takes the server's place.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)

_OF_OUR_PYTHON = {"PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"}
"""They would have another interpreter use the packages of ours; Ray's workers have some of them."""


def command(setup: SglangSetup, port: int) -> list[str]:
    """The server's command line; what the spec gives comes last, ours are the rest."""
    ours = {
        "model-path": setup.model_folder,
        "host": setup.host,
        "port": port,
        "device": setup.device,
        "dtype": setup.dtype,
        "max-running-requests": setup.max_running,
        "tp-size": setup.tensor,
        "random-seed": setup.seed,
        "config": str(setup.secrets),
        "sleep-on-idle": True,
    }
    if setup.max_length is not None:
        ours["context-length"] = setup.max_length
    if setup.max_cache_tokens is not None:
        ours["max-total-tokens"] = setup.max_cache_tokens
    if setup.nodes > 1:
        assert setup.meeting is not None, "several nodes meet somewhere"
        ours |= {"nnodes": setup.nodes, "node-rank": setup.node, "dist-init-addr": setup.meeting}
    given = {spelled(name): value for name, value in setup.arguments.items()}
    server = [setup.python, "-m", "sglang.launch_server", *_options(ours | given)]
    return [setup.python, "-c", _DIE_WITH_PARENT, *server]


def key_file(setup: SglangSetup) -> str:
    """Content of the file that `--config` names; JSON is YAML too."""
    return json.dumps({"api-key": setup.api_key, "admin-api-key": setup.api_key})


def environment(setup: SglangSetup, own: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, without those that would lead the server to our packages, and the spec's."""
    kept = {name: value for name, value in own.items() if name not in _OF_OUR_PYTHON}
    if setup.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(setup.gpus)
    # The plain form of /health generates a token, and hangs while the server is paused.
    return kept | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"} | dict(setup.environment)


def _options(arguments: Mapping[str, Any]) -> list[str]:
    """`--name value` for each; true is the bare name, false nothing, a list several values, a table JSON."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += [str(one) for one in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return words
