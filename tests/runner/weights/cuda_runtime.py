"""CUDA's runtime, replaced: it only notes which memory is registered."""

from types import SimpleNamespace

import pytest
import torch


class Runtime:
    """Notes which memory is registered; refuses with `error` if that is not 0."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.registrations = 0
        self.error = 0

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        assert pointer not in self.registered
        self.registered[pointer] = size
        self.registrations += 1
        return self.error

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.registered[pointer]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"


def replace_runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Replaces the runtime within a test, and returns the replacement."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda error: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    return runtime
