"""Runs an SGLang server as a process."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from rlrun.runner.engines.process.command_line import die_with_parent, inherited_variables, options
from rlrun.runner.engines.process.server_process import ServerProcess
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.memory import largest_gpu_memory
from rlrun.runner.host.network import interface_variables
from rlrun.runner.host.remote_code import check_code
from rlrun.specs.derived.sglang_arguments import flag_name

_MEMORY_SECONDS = 30.0
"""Time between two questions to the driver: a server is asked for its health every second."""


class SglangServer(ServerProcess):
    """One server, or one node's part of a server over several nodes."""

    what = "SGLang server"

    def __init__(self, setup: SglangSetup) -> None:
        super().__init__(setup)
        self._own = setup
        self._gpu_memory, self._next_question = 0.0, 0.0

    def memory(self) -> float:
        """Returns the bytes on the GPU of the process that uses most there; of host memory on a CPU."""
        if self._own.device == "cpu":
            return super().memory()
        if time.monotonic() >= self._next_question:
            self._next_question = time.monotonic() + _MEMORY_SECONDS
            self._gpu_memory = largest_gpu_memory({member.pid for member in self._members})
        return self._gpu_memory

    def _command(self, port: int) -> list[str]:
        if self._own.code is not None:
            check_code(Path(self._own.model_folder), self._own.code)
        return command(self._own, port)

    def _environment(self) -> dict[str, str]:
        return environment(self._own, interface_variables(self._own.host) | dict(os.environ))

    def _secret(self) -> str:
        return key_file(self._own)


def command(setup: SglangSetup, port: int) -> list[str]:
    """Returns the server's command line; arguments of the spec take precedence over the job's."""
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
    if setup.code is not None:
        ours["trust-remote-code"] = True
    if setup.nodes > 1:
        assert setup.meeting is not None, "a server over several nodes needs an address to meet at"
        ours |= {"nnodes": setup.nodes, "node-rank": setup.node, "dist-init-addr": setup.meeting}
    if setup.role != "regular":
        ours["disaggregation-mode"] = setup.role
    if setup.bootstrap_port is not None:
        ours["disaggregation-bootstrap-port"] = setup.bootstrap_port
    given = {flag_name(name): value for name, value in setup.arguments.items()}
    return die_with_parent([setup.python, "-m", "sglang.launch_server", *options(ours | given)])


def key_file(setup: SglangSetup) -> str:
    """Returns the content of the file that `--config` names. SGLang reads YAML, which includes JSON."""
    return json.dumps({"api-key": setup.api_key, "admin-api-key": setup.api_key})


def environment(setup: SglangSetup, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the server's environment variables: those of this process that it may inherit, and the spec's.

    Its own address is excluded from proxies, since the server checks itself through it.
    """
    kept = inherited_variables(own)
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, [kept.get(name), setup.host]))
    if setup.device == "cpu":  # SGLang takes a GPU's kernels where torch sees a GPU
        kept["CUDA_VISIBLE_DEVICES"] = ""
    elif setup.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(setup.gpus)
    # The plain form of /health generates a token, and hangs while the server is paused.
    return kept | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"} | dict(setup.environment)
