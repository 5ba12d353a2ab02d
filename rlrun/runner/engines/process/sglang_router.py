"""Runs the router of the sglang-router package as a process of the job; it starts without engines."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.process.command_line import die_with_parent, inherited_variables, options
from rlrun.runner.engines.process.server_process import ServerProcess, ask_health, usable_port
from rlrun.specs.derived.sglang_arguments import flag_name

# Does what the package's own launcher does, which would import SGLang and torch first. The key comes from a
# file, since other users can read a command line.
_LAUNCH = """
import argparse, json, sys
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
parser = argparse.ArgumentParser("sglang-router")
RouterArgs.add_cli_args(parser)
words = sys.argv[2:] + json.load(open(sys.argv[1]))
Router.from_args(RouterArgs.from_cli_args(parser.parse_args(words))).start()
"""

_POLL_SECONDS = 0.2
_HEALTH_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RouterSetup:
    """Settings of a job's router. One that the job starts is on the driver's host, and only the driver sends
    requests to it.
    """

    python: str
    """Interpreter of an environment that has sglang_router."""
    log: Path
    """File for its output; its last error is read from there."""
    secrets: Path
    """File for its key, which other users may not read."""
    api_key: str
    """The key that requests and changes of its list of engines need."""
    request_timeout: float
    """Seconds that it waits for an engine's answer."""
    url: str | None = None
    """The address of a router that runs already; None: the job starts one."""
    host: str = "127.0.0.1"
    port: int | None = None
    """Port to listen on; None: a free one."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, as in `[engine.sglang_router]`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to those of this process."""
    start_timeout: float = 60.0
    """Seconds that it may take to answer."""


class RouterServer(ServerProcess):
    """The router's process."""

    what = "router (sglang-router)"

    def __init__(self, setup: RouterSetup) -> None:
        super().__init__(setup)
        self._own = setup

    def _command(self, port: int) -> list[str]:
        words = options(router_arguments(self._own, port, usable_port(self._own.host, None)))
        return die_with_parent([self._own.python, "-c", _LAUNCH, str(self._own.secrets), *words])

    def _environment(self) -> dict[str, str]:
        # Otherwise the router would send requests to the engines through the environment's proxy.
        return inherited_variables(os.environ) | {"NO_PROXY": "*"} | dict(self._own.environment)

    def _secret(self) -> str:
        return json.dumps(options({"api-key": self._own.api_key}))


class RunningRouter:
    """A router that runs already: the job neither starts nor ends it. It has the calls of RouterServer."""

    def __init__(self, url: str, setup: RouterSetup) -> None:
        self._url, self._setup = url.rstrip("/"), setup

    def launch(self) -> None:
        """Does nothing."""

    def wait(self) -> str:
        """Returns the URL when the router answers. Raises TimeoutError past the deadline."""
        deadline = time.monotonic() + self._setup.start_timeout
        while True:
            try:
                self.check()
            except EngineError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(str(error)) from error
                time.sleep(_POLL_SECONDS)
            else:
                return self._url

    def check(self) -> None:
        """Raises EngineError when the router does not answer."""
        try:
            ask_health(self._url, _HEALTH_SECONDS, self._setup.api_key or None)
        except OSError as error:
            raise EngineError(
                f"the router at {self._url} (engine.router_url) does not answer: {error}"
            ) from error

    def stop(self) -> None:
        """Does nothing."""


def router_arguments(setup: RouterSetup, port: int, metrics_port: int) -> dict[str, Any]:
    """Returns all arguments except the key, by the router's names; those of the spec take precedence.

    The router's health checks, circuit breaker and retries are off: the pool does all of that itself.
    """
    ours = {
        "host": setup.host,
        "port": port,
        "request-timeout-secs": int(setup.request_timeout),
        "disable-health-check": True,
        "disable-circuit-breaker": True,
        "disable-retries": True,
        "prometheus-host": setup.host,
        "prometheus-port": metrics_port,  # cannot be switched off; its default port may be taken
        "log-level": "warn",  # at "info" it writes two lines per sample
    }
    return ours | {flag_name(name): value for name, value in setup.arguments.items()}
