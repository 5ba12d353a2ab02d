"""Checkpoints that are written while training continues, from a copy of the state in host memory.

state ─▶ copy in host memory ─▶ (training continues) ─▶ written by a thread of every rank, together
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.trainer import transfers
from rlrun.runner.trainer.checkpoints.distributed import write_state
from rlrun.runner.trainer.compat.meshes import local_part, with_local_part


class BackgroundSave:
    """Writes one checkpoint at a time in a thread. The training thread of every rank calls it alike."""

    def __init__(self, seconds: float = 1800.0) -> None:
        """`seconds`: how long a rank that has written its part waits for the others."""
        self._timeout = timedelta(seconds=seconds)
        self._staged: list[tuple[Path, dict[str, torch.Tensor]]] = []
        self._writing: Future[Digests] | None = None
        self._group: dist.ProcessGroup | None = None

    def stage(self, folder: Path, state: Mapping[str, torch.Tensor]) -> None:
        """Copies a state to host memory, to be written into `folder`."""
        assert self._writing is None, "the result of the last save was not collected"
        self._staged.append((folder, host_copy(state)))

    def begin(self) -> None:
        """Begins to write the staged states, in a daemon thread, so that the process can still end.

        The ranks' threads use a separate process group: in the default group their collectives would mix
        with those of training.
        """
        if dist.is_initialized() and self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        written: Future[Digests] = Future()
        self._writing = written
        staged, self._staged = self._staged, []
        threading.Thread(target=self._write, args=(staged, written), daemon=True).start()

    def done(self) -> Digests | None:
        """Returns the checksums of this rank's files when everything is on disk, None before. Raises the
        thread's error, an OSError if the disk is full.
        """
        assert self._writing is not None, "nothing is being saved"
        if not self._writing.done():
            return None
        finished, self._writing = self._writing, None
        return finished.result()

    def _write(self, staged: list[tuple[Path, dict[str, torch.Tensor]]], written: Future[Digests]) -> None:
        digests: Digests = {}
        try:
            for folder, state in staged:
                digests |= write_state(folder, state, self._group)
        except BaseException as error:
            written.set_exception(error)
        else:
            written.set_result(digests)


def host_copy(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns a copy in host memory of each tensor, with the same layout over the ranks."""
    copies = {name: transfers.host_copy(local_part(tensor)) for name, tensor in state.items()}
    for device in {tensor.device for tensor in state.values()}:
        transfers.wait(device)
    return {name: with_local_part(state[name], copy) for name, copy in copies.items()}
