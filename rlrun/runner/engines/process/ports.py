"""Ports of this host, tried before a server starts: it would say only after a minute that one is taken."""

from socket import SO_REUSEADDR, SOL_SOCKET, socket

from rlrun.runner.contracts.errors import EngineError


def usable_port(host: str, port: int | None) -> int:
    """The port that was asked for, or a free one. EngineError where it is taken."""
    with socket() as one:
        one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # as servers do: not kept by connections that ended
        try:
            one.bind((host, port or 0))
        except OSError as error:
            raise EngineError(
                f"port {port} of {host} is taken ({error.strerror}); choose another engine.port, "
                "or leave it out"
            ) from error
        return int(one.getsockname()[1])
