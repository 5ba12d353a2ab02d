"""Opens object stores by their addresses: S3, Google Cloud Storage, Azure, or a folder as `file:///…`."""

import os
import re
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rlrun.models.error_text import first_line

INSTALL = "pip install 'rlrun[storage]'"
_ADDRESS = re.compile(r"(s3|gs|az)://[^/\s]+(/\S*)?|file:///\S+")
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_TIMEOUT = "120s"
"""The time that one request may take: 32 MiB at 0.3 MB/s."""
_QUERY = re.compile(r"\?[^\s)]*")


class StorageError(Exception):
    """An object store cannot be used; the message is one line, without the address's credentials."""


def is_address(value: str) -> bool:
    """Whether a value of a spec is the address of an object store."""
    return _ADDRESS.fullmatch(value) is not None


def address_fault(value: str) -> str | None:
    """Returns why an address cannot be used; None if it can. The text repeats nothing of the address, which
    may have a secret.
    """
    parts = urlsplit(value)
    if "@" in parts.netloc:
        return "must not have a user or a key before the bucket: credentials come from the environment"
    if parts.query or parts.fragment or value[-1:] in ("?", "#"):
        return "must not have ? or #: what follows is no part of an object's name; write them as %3F and %23"
    return None


def folder_of(url: str) -> Path | None:
    """Returns the folder that an address `file:///…` names; None for any other address."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None


def open_store(url: str, *, create: bool = True) -> Any:
    """Returns obstore's store for an address, whose path is the prefix of all keys; makes no request.

    `create`: a folder as `file:///…` that does not exist is made.

    Credentials, region and endpoint come from the environment by obstore's rules, `AWS_ACCESS_KEY_ID` for
    instance. Raises StorageError without obstore, or for an address that it cannot use.
    """
    if find_spec("obstore") is None:
        raise StorageError(f"{url}: obstore is not installed: {INSTALL}")
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    folder = folder_of(url)
    if folder is not None and not create and not folder.is_dir():
        raise StorageError(f"{url}: there is no folder {folder}")
    try:
        if folder is not None:
            return from_url(url, mkdir=create, automatic_cleanup=create)
        # these options replace those that obstore takes from the environment
        allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        options: Any = {"timeout": _TIMEOUT, "connect_timeout": "10s", "allow_http": allow_http}
        settings: Any = {"client_options": options, "retry_config": _RETRIES}
        if url.startswith("s3:") and "AWS_CHECKSUM_ALGORITHM" not in os.environ:
            # some servers do not compare the body with the checksum that the signature covers
            settings["checksum_algorithm"] = "SHA256"
        return from_url(url, **settings)
    except (BaseError, ValueError, OSError) as error:
        raise StorageError(f"{url}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Returns an error's first line without the query of an address, which may hold a signature, and without
    the beginning of a server's page.
    """
    return _QUERY.sub("", first_line(error).partition(": <")[0])
