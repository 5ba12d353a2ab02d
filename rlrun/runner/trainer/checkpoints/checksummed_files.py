"""How torch.distributed.checkpoint reads and writes files: with checksums, and without running code.

write: torch's writer ─▶ HashedFiles: file + checksum of the same bytes
read:  CheckpointReader: a restricted unpickler for `.metadata`, torch.load(weights_only=True) for tensors
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from xxhash import xxh3_128

from rlrun.converters.folders.checksums import Digests
from rlrun.converters.folders.dcp_metadata import METADATA, read_metadata


class HashedFiles(FileSystem):
    """Local files; takes the checksum of each file while it is written."""

    def __init__(self) -> None:
        self.digests: Digests = {}
        """The checksum of each complete file, by path."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Opens a file. An OSError of the disk is raised again when the stream is closed: torch's own error,
        about where the file should have ended, would hide it.
        """
        with super().create_stream(path, mode) as file:
            if "w" not in mode:
                yield file
                return
            stream = _HashedStream(file)
            try:
                yield stream
            except Exception as error:
                raise (stream.error or error) from None
        self.digests[str(path)] = stream.hash.hexdigest()

    def rename(self, path: Any, new_path: Any) -> None:
        """Renames a file, which keeps its digest."""
        super().rename(path, new_path)
        self.digests[str(new_path)] = self.digests.pop(str(path))


class _HashedStream:
    """The methods of a file that torch's writer uses. It only appends, so a running checksum suffices."""

    def __init__(self, file: IO[bytes]) -> None:
        self.hash = xxh3_128()
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        return written

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self.error = error
            raise

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self.flush()
        self._file.close()


class CheckpointReader(FileSystemReader):
    """Reads a checkpoint of rlrun's trainer, which contains only tensors.

    torch would unpickle `.metadata` without restriction, and any entry that claims not to be a tensor.
    """

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Returns the table of contents. Raises ValueError if it is damaged or lists anything but tensors."""
        path = Path(self.path) / METADATA
        table = read_metadata(path)
        for name, entry in table.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise ValueError(f"{path} does not describe a checkpoint of rlrun: {name!r} is not a tensor")
        table.storage_meta = table.storage_meta or StorageMeta()
        table.storage_meta.load_id = self.load_id
        return table
