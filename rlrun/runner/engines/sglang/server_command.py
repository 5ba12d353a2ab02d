"""An SGLang server's command line and environment; pure."""

import json
from collections.abc import Mapping

from rlrun.runner.engines.process.command_line import mortal, options, variables
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.specs.derived.sglang_arguments import flag_name


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
    given = {flag_name(name): value for name, value in setup.arguments.items()}
    return mortal([setup.python, "-m", "sglang.launch_server", *options(ours | given)])


def key_file(setup: SglangSetup) -> str:
    """Content of the file that `--config` names; JSON is YAML too."""
    return json.dumps({"api-key": setup.api_key, "admin-api-key": setup.api_key})


def environment(setup: SglangSetup, own: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, without those that would lead the server to our packages, and the spec's.

    The server asks itself whether it is up, which no proxy can answer.
    """
    kept = variables(own)
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, [kept.get(name), setup.host]))
    if setup.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(setup.gpus)
    # The plain form of /health generates a token, and hangs while the server is paused.
    return kept | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"} | dict(setup.environment)
