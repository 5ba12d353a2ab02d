"""Finds a usable port before a server starts: the server itself would fail only after a minute of loading."""

from socket import SO_REUSEADDR, SOL_SOCKET, socket

from rlrun.runner.contracts.errors import EngineError


def usable_port(host: str, port: int | None) -> int:
    """Returns the given port, or a free one if it is None. Raises EngineError if the port is taken."""
    with socket() as listener:
        # Servers set this too: connections that ended a moment ago do not block the port.
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        try:
            listener.bind((host, port or 0))
        except OSError as error:
            raise EngineError(
                f"port {port} of {host} is taken ({error.strerror}); choose another engine.port, "
                "or leave it out"
            ) from error
        return int(listener.getsockname()[1])
