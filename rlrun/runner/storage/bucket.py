"""One run's part of an object store: S3, Google Cloud Storage, Azure, or a folder.

Every object is put as a whole, in one request: a process that is killed leaves whole objects, or none, and no
parts of a multipart upload, which listings do not show and which stay until somebody aborts them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from rlrun.models.object_store import StorageError, open_store, reason
from rlrun.specs.sections.job import Spec

TRIES = 4
"""How often a request is made that fails. The library has repeated it within each try."""
_FIRST_PAUSE = 0.5
"""Seconds before the second try; doubles each time."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class Missing(StorageError):
    """There is no such object."""


class Exists(StorageError):
    """An object that was to be created exists already."""


class Bucket:
    """The objects below one address. Every method repeats a request that fails, and then raises
    StorageError.
    """

    def __init__(self, store: Any, url: str, *, first_pause: float = _FIRST_PAUSE) -> None:
        """`store` is a store of obstore; `url` is its address for messages."""
        self._store = store
        self._first_pause = first_pause
        self.url = url
        self.failed_requests = 0
        """Tries that failed so far."""
        self.sent_bytes = 0
        """Bytes of all objects that were written so far."""

    async def put(self, key: str, data: bytes) -> None:
        """Writes an object, or replaces it."""
        import obstore

        await self._tried(lambda: obstore.put_async(self._store, key, data, use_multipart=False), key)
        self.sent_bytes += len(data)

    async def create(self, key: str, data: bytes) -> None:
        """Writes an object if there is none (`If-None-Match: *`).

        Raises Exists otherwise, also where an earlier try wrote it, whose answer was lost.
        """
        import obstore

        await self._tried(
            lambda: obstore.put_async(self._store, key, data, mode="create", use_multipart=False), key
        )

    async def get(self, key: str) -> bytes:
        """Returns an object's content. Raises Missing if there is none."""
        import obstore

        async def read() -> bytes:
            return bytes(await (await obstore.get_async(self._store, key)).bytes_async())

        return await self._tried(read, key)

    async def list(self, prefix: str) -> list[str]:
        """Returns the names of all objects below a prefix, sorted."""
        import obstore

        async def read() -> list[str]:
            return sorted(
                [item["path"] async for batch in obstore.list(self._store, prefix) for item in batch]
            )

        return await self._tried(read, prefix)

    async def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; an object that is not there is no error."""
        import obstore

        for key in keys:
            try:
                await self._tried(lambda key=key: obstore.delete_async(self._store, key), key)  # type: ignore[misc]
            except Missing:
                continue

    async def _tried(self, request: Callable[[], Awaitable[Result]], key: str) -> Result:
        """Returns the result of a request, which is repeated with growing pauses."""
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

        pause = self._first_pause
        for number in range(1, TRIES + 1):
            try:
                return await request()
            except (NotFoundError, FileNotFoundError) as error:
                raise Missing(f"{self.url}/{key} does not exist") from error
            except (AlreadyExistsError, FileExistsError) as error:
                raise Exists(f"{self.url}/{key} exists already") from error
            except (BaseError, OSError, ValueError) as error:
                self.failed_requests += 1
                message = reason(error)
                if number == TRIES:
                    raise StorageError(f"{self.url}/{key}: {message}") from error
                logger.info("%s/%s: %s; it is tried again", self.url, key, message)
                await asyncio.sleep(pause)
                pause *= 2
        raise AssertionError("the last try returns or raises")


def open_bucket(url: str) -> Bucket:
    """Returns the objects below an address such as `s3://bucket/prefix/run`. Raises StorageError as
    `open_store` does.
    """
    return Bucket(open_store(url), url)


def run_bucket(spec: Spec, name: str) -> Bucket | None:
    """Returns the objects of the run `name`; None for a spec without a mirror, and for an evaluation, which
    has no checkpoints. Raises StorageError as `open_store` does.
    """
    if spec.checkpoint.mirror is None or spec.debug.mode == "eval":
        return None
    return open_bucket(f"{spec.checkpoint.mirror.rstrip('/')}/{name}")
