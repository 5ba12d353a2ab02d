"""The settings that a sleeping engine is started with."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SleepingSetup:
    """Settings of an engine that answers with constant tokens after a delay."""

    max_running: int = 256
    """Limit of samples that sleep at once; further samples wait."""
    token_seconds: float = 0.01
    """Seconds per token, however many samples run."""
    mean_tokens: float = 200.0
    """Mean length of a response, before it is cut to the request's limit."""
    spread: float = 1.0
    """Standard deviation of the lengths, divided by their mean."""
    host: str = "127.0.0.1"
    port: int | None = None
    """Port to listen on; None: a free one."""
    api_key: str | None = field(default=None, repr=False)
    """The key that every request except `/health` needs; None: no key is needed."""
