"""Which requests a server of ours lets in, by their headers."""

import socket

import pytest

from rlrun.plugins.http_guard import Guard, bearer, is_key, is_known_host


@pytest.mark.parametrize(
    ("host", "address", "known"),
    [
        ("127.0.0.1:30000", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost:8", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("[::1]:8", "::1", True),
        (f"{socket.gethostname()}:8", "10.0.0.7", True),
        ("10.0.0.7:30000", "10.0.0.7", True),
        ("10.0.0.8:30000", "10.0.0.7", False),
        ("10.0.0.8:30000", "0.0.0.0", True),
        ("[fe80::1]:30000", "::", True),
        ("evil.example", "0.0.0.0", False),
        ("evil.example:30000", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("127.0.0.1@evil.example", "127.0.0.1", False),
        ("localhost, evil.example", "127.0.0.1", False),
        ("localhost:8:9", "127.0.0.1", False),
        ("0x7f.1", "0.0.0.0", False),
        ("", "0.0.0.0", False),
        (" ", "127.0.0.1", False),
        ("[::1", "::1", False),
    ],
)
def test_hosts(host: str, address: str, known: bool) -> None:
    assert is_known_host(host, address) == known


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc", "abc"),
        ("Bearer", ""),
        ("Bearer ", ""),
        ("Basic abc", ""),
        ("abc", ""),
        ("Bearer a b", ""),
    ],
)
def test_the_key_of_a_request(header: str, key: str) -> None:
    assert bearer({"Authorization": header}) == key


def test_keys_are_compared_whole() -> None:
    assert is_key("abc", "abc")
    assert not any(is_key(given, "abc") for given in ("", "ab", "abcd", "ABC", "äbc", "\udcff"))
    assert not is_key("", "")


RIGHT = {
    "Host": "127.0.0.1:1",
    "Authorization": "Bearer k",
    "Content-Type": "application/json; charset=utf-8",
}


@pytest.mark.parametrize(
    ("method", "path", "changed", "status"),
    [
        ("POST", "/x", {}, None),
        ("GET", "/x", {"Content-Type": ""}, None),
        ("GET", "/health", {"Authorization": "", "Content-Type": ""}, None),
        ("GET", "/health/", {"Authorization": ""}, 401),
        ("GET", "/health", {"Host": "evil.example"}, 403),
        ("GET", "/x", {"Authorization": ""}, 401),
        ("POST", "/x", {"Authorization": "Bearer K"}, 401),
        ("POST", "/x", {"Host": "evil.example"}, 403),
        ("POST", "/x", {"Content-Type": "text/plain"}, 415),
        ("POST", "/x", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/x", {"Content-Type": "application/jsonp"}, 415),
        ("POST", "/x", {"Content-Type": ""}, 415),
    ],
)
def test_requests_that_are_refused(
    method: str, path: str, changed: dict[str, str], status: int | None
) -> None:
    guard = Guard("127.0.0.1", "k", frozenset({"/health"}))
    refusal = guard.refusal(method, path, RIGHT | changed)
    assert (None if refusal is None else refusal.status) == status
