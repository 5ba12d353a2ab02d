"""Finds a usable port before a server starts: the server itself would fail only after a minute of loading."""

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.host.network import free_port, take


def usable_port(host: str, port: int | None) -> int:
    """Returns the given port, or a free one if it is None. Raises EngineError if the port is taken."""
    if port is None:
        return free_port(host)
    try:
        return take(host, port)
    except OSError as error:
        raise EngineError(
            f"port {port} of {host} is taken ({error.strerror}); choose another engine.port, or leave it out"
        ) from error
