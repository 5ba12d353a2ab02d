"""Frees nothing: on a CPU, releasing and resuming memory only changes SGLang's own state."""

from contextlib import nullcontext
from typing import Any


class Saver:
    """Has the methods that SGLang calls."""

    enabled = True
    hook_mode = None

    def region(self, *_: Any, **__: Any) -> Any:
        return nullcontext()

    cuda_graph = disable = region

    def pause(self, tag: str | None = None) -> None:
        """Does nothing: there is no memory to free."""

    resume = pause


torch_memory_saver = Saver()


def configure_subprocess() -> Any:
    return nullcontext()
