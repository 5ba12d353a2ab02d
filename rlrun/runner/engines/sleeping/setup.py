"""What a sleeping engine needs to start."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SleepingSetup:
    """One engine that answers with tokens that nobody computed."""

    max_running: int = 256
    """Samples that sleep together; others wait."""
    token_seconds: float = 0.01
    """How long a token takes, whatever runs beside it."""
    mean_tokens: float = 200.0
    """Length of a response, on average; what the request's budget leaves of it."""
    spread: float = 1.0
    """Standard deviation of lengths over their mean."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one."""
    api_key: str | None = field(default=None, repr=False)
    """Asked for with every request but `/health`; None: no key is asked for."""
