"""Asking a server of the job whether it is well."""

from urllib.request import ProxyHandler, Request, build_opener

_DIRECT = build_opener(ProxyHandler({}))
"""Past the proxy that the environment may name: none leads to the job's own servers."""


def ask_health(url: str, seconds: float, key: str | None = None) -> None:
    """Return when `/health` says yes; URLError or another OSError where it says no, or nothing in time."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with _DIRECT.open(Request(f"{url}/health", headers=headers), timeout=seconds):
        pass
