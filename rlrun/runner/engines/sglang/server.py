"""Runs an SGLang server as a process."""

import os

from rlrun.runner.engines.process.server_process import ServerProcess
from rlrun.runner.engines.sglang.server_command import command, environment, key_file
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.host.network import interface_variables


class SglangServer(ServerProcess):
    """One server, or one node's part of a server over several nodes."""

    what = "SGLang server"

    def __init__(self, setup: SglangSetup) -> None:
        super().__init__(setup)
        self._own = setup

    def _command(self, port: int) -> list[str]:
        return command(self._own, port)

    def _environment(self) -> dict[str, str]:
        return environment(self._own, interface_variables(self._own.host) | dict(os.environ))

    def _secret(self) -> str:
        return key_file(self._own)
