"""The router of the sglang-router package as a process of ours; it begins without engines."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.runner.engines.process.command_line import mortal, options, variables
from rlrun.runner.engines.process.ports import usable_port
from rlrun.runner.engines.process.server_process import ServerProcess
from rlrun.specs.derived.sglang_arguments import flag_name

# As the package's own launcher, which would first import SGLang and torch. The key comes from a file: other
# users may read a command line.
_LAUNCH = """
import argparse, json, sys
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
parser = argparse.ArgumentParser("sglang-router")
RouterArgs.add_cli_args(parser)
words = sys.argv[2:] + json.load(open(sys.argv[1]))
Router.from_args(RouterArgs.from_cli_args(parser.parse_args(words))).start()
"""


@dataclass(frozen=True, slots=True)
class RouterSetup:
    """The router of a job, on the driver's host: nobody else asks it."""

    python: str
    """Interpreter that has sglang_router."""
    log: Path
    """Where its output goes; its last error is read from there."""
    secrets: Path
    """A file for its key, which other users may not read."""
    api_key: str
    """Asked of whoever sends requests, or changes its list of engines."""
    request_timeout: float
    """Seconds that it waits for an engine's answer."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, as in `[engine.sglang_router]`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set for it on top of this process's own."""
    start_timeout: float = 60.0
    """Seconds it may take to answer."""


class RouterServer(ServerProcess):
    """Its process."""

    what = "router (sglang-router)"

    def __init__(self, setup: RouterSetup) -> None:
        super().__init__(setup)
        self._own = setup

    def _command(self, port: int) -> list[str]:
        words = options(router_arguments(self._own, port, usable_port(self._own.host, None)))
        return mortal([self._own.python, "-c", _LAUNCH, str(self._own.secrets), *words])

    def _environment(self) -> dict[str, str]:
        # A proxy that the environment names would be asked for the engines.
        return variables(os.environ) | {"NO_PROXY": "*"} | dict(self._own.environment)

    def _secret(self) -> str:
        return json.dumps(options({"api-key": self._own.api_key}))


def router_arguments(setup: RouterSetup, port: int, metrics_port: int) -> dict[str, Any]:
    """All but its key, as it names them; what the spec gives comes last.

    Whether engines are well is the pool's to say, and it asks again by itself.
    """
    ours = {
        "host": setup.host,
        "port": port,
        "request-timeout-secs": int(setup.request_timeout),
        "disable-health-check": True,
        "disable-circuit-breaker": True,
        "disable-retries": True,
        "prometheus-host": setup.host,
        "prometheus-port": metrics_port,  # it always listens there, at the same port unless told
        "log-level": "warn",  # else two lines a sample
    }
    return ours | {flag_name(name): value for name, value in setup.arguments.items()}
