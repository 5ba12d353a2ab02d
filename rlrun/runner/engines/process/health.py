"""Asks one of the job's servers whether it is healthy."""

from urllib.request import ProxyHandler, Request, build_opener

_DIRECT = build_opener(ProxyHandler({}))
"""Ignores the environment's proxy, which cannot reach the job's own servers."""


def ask_health(url: str, seconds: float, key: str | None = None) -> None:
    """Returns when `/health` answers yes. Raises OSError if it answers no, or does not answer in time."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with _DIRECT.open(Request(f"{url}/health", headers=headers), timeout=seconds):
        pass
