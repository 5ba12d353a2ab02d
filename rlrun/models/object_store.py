"""Opens object stores by their addresses: S3, Google Cloud Storage, Azure, or a folder as `file:///…`."""

import os
import re
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

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


def open_store(url: str) -> Any:
    """Returns obstore's store for an address, whose path is the prefix of all keys; makes no request.

    Credentials, region and endpoint come from the environment by obstore's rules, `AWS_ACCESS_KEY_ID` for
    instance. Raises StorageError without obstore, or for an address that it cannot use.
    """
    if find_spec("obstore") is None:
        raise StorageError(f"{url}: obstore is not installed: {INSTALL}")
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        if url.startswith("file:"):
            return from_url(url, mkdir=True, automatic_cleanup=True)
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
