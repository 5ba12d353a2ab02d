"""Saves a second checkpoint again and again, each time killed one file operation later: `FOLDER`.

Prints the number of operations that a save takes. `FOLDER/N` is what the N-th kill left behind.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.trainer.checkpoints import checksummed_files as checkpoint_files
from tests.runner.real_trainer import DRIVER, RealTrainer

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree"}


def main(base: Path) -> None:
    """Runs in a process without threads, because it forks."""
    beginning = base / "beginning"
    beginning.mkdir()
    if os.fork() == 0:
        asyncio.run(Checkpoints(beginning, keep=1).save(RealTrainer(1), 1, DRIVER))
        os._exit(0)
    os.wait()
    number = 0
    while True:
        folder = Path(shutil.copytree(beginning, base / str(number)))
        if os.fork() == 0:
            save_until(number, folder)
            os._exit(0)
        _, status = os.wait()
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        number += 1
    print(number)


def save_until(number: int, folder: Path) -> None:
    """Saves, and is killed before the given file operation in `folder`."""
    operations = 0

    def count() -> None:
        nonlocal operations
        if operations == number:
            os.kill(os.getpid(), signal.SIGKILL)
        operations += 1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            count()

    sys.addaudithook(hook)
    checkpoint_files._HashedStream.write = counted(checkpoint_files._HashedStream.write, count)  # type: ignore[method-assign]
    asyncio.run(Checkpoints(folder, keep=1).save(RealTrainer(2), 2, DRIVER))


def counted(write: Callable[..., int], count: Callable[[], None]) -> Callable[..., int]:
    """Counts the writes within a file too; what was written before is on disk."""

    def call(stream: Any, data: Any) -> int:
        stream.flush()
        count()
        return write(stream, data)

    return call


if __name__ == "__main__":
    main(Path(sys.argv[1]))
