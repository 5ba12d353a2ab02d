"""Keeps secrets of a launch script out of specs and messages."""

import re

_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:wandb[-_]key|api[-_]?key|access[-_]?key|token|secret|password|passwd|credentials?|authorization)$",
    re.IGNORECASE,
)
_USER = re.compile(r"(?P<start>[a-z][a-z0-9+.-]*://)(?!\$\{env:)[^/?#\s]+@", re.IGNORECASE)
_ANY_USER = re.compile(r"(?P<start>[a-z][a-z0-9+.-]*://)[^/?#\s]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<start>[?&](?:api[-_]?key|key|token|access[-_]?token|secret|password)=)(?!\$\{env:)[^&\s]+", re.I
)


def is_secret(name: str) -> bool:
    """Returns whether a flag or setting of this name holds a secret, such as `--wandb-key` or `api_key`."""
    return bool(_SECRET_NAME.search(name))


def without_credentials(text: str) -> str:
    """Returns the text with users, passwords and keys in addresses replaced by `${env:…}` references."""
    text = _USER.sub(r"\g<start>${env:URL_CREDENTIALS}@", text)
    return _QUERY.sub(r"\g<start>${env:URL_KEY}", text)


def bare_address(url: str) -> str:
    """Returns an address without user, password and query, which requests to engines do not contain."""
    return re.split(r"[?#]", _ANY_USER.sub(r"\g<start>", url))[0]
