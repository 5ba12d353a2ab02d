"""A buffer in shared memory of this host, and torch's handles to it for SGLang servers.

    buffer ──ForkingPickler──▶ handles, a payload a reader ──HTTP──▶ server maps the buffer

A payload is read once: torch counts the readers of a buffer in the buffer itself.
"""

import base64
import io
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing

from rlrun.runner.weights.segment_files import FOLDER


class SharedBuffer:
    """Bytes that other processes of this host can map; gone with `close`."""

    def __init__(self, size: int) -> None:
        # A file descriptor, torch's default, cannot follow an HTTP call, and ends a server that is sent one.
        torch.multiprocessing.set_sharing_strategy("file_system")
        self.bytes: torch.Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()

    def payloads(self, views: Mapping[str, torch.Tensor], count: int) -> tuple[str, ...]:
        """Handles to named views of the buffer, for `count` readers."""
        return tuple(_payload(views) for _ in range(count))

    def close(self) -> None:
        """Remove the buffer, which torch would leave there where not every payload was read; a process that
        has mapped it keeps it.
        """
        _, handle, _ = self.bytes.untyped_storage()._share_filename_cpu_()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        (FOLDER / handle.decode().lstrip("/")).unlink(missing_ok=True)


def _payload(views: Mapping[str, torch.Tensor]) -> str:
    written = io.BytesIO()
    ForkingPickler(written).dump(list(views.items()))
    return base64.b64encode(written.getvalue()).decode()
