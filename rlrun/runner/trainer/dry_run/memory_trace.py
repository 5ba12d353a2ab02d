"""Traces what memory is used for, operation by operation, with tensors that have a shape but no content.

Every storage that an operation creates is recorded under the current purpose, and removed when it is freed.
FSDP's gathered layers are storages that grow and shrink.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")

PARAMETERS, COPIES, OPTIMIZER, GRADIENTS = "parameters", "parameter copies", "optimizer", "gradients"
ACTIVATIONS, LOGITS, GATHERED, TEMPORARIES = "activations", "logits", "gathered layers", "temporaries"
NOTHING = ""
"""Storages of this purpose are not recorded."""
_OURS = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class MemoryTrace(TorchDispatchMode):
    """Counts bytes by purpose while its context is entered, within torch's FakeTensorMode."""

    def __init__(self, on_host: Iterable[str] = ()) -> None:
        """`on_host`: the purposes whose storages are in host memory, and take no device memory."""
        super().__init__()
        self._on_host = frozenset(on_host)
        self._entries: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._purpose: str | None = None
        self.live: Counter[str] = Counter()
        """The current bytes by purpose."""
        self.most: Counter[str] = Counter()
        """The maximum of each purpose, which each reaches at its own time."""
        self.peak: Counter[str] = Counter()
        """Bytes by purpose at the time when the device held the most."""

    def __enter__(self) -> Self:
        self._resize = resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if id(storage) in self._entries:
                self._record(storage, self._entries[id(storage)][2])
            return result

        torch.UntypedStorage.resize_ = resize_
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation and records the storages that it created."""
        if any(kind not in _OURS for kind in types):
            return (
                NotImplemented  # a DTensor or another wrapper: its inner tensors are dispatched here as well
            )
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1  # fake tensors have no content; only metrics and the gradient norm read any
        result = func(*args, **(kwargs or {}))
        if self._purpose == NOTHING:
            return result
        self._record_new(tree_leaves(result), self._current_purpose)
        if func.namespace == "fsdp":
            self.record_as(tree_leaves((args, kwargs, result)), GATHERED, unless=(PARAMETERS, COPIES))
        return result

    @property
    def _current_purpose(self) -> str:
        if self._purpose is not None:
            return self._purpose
        return TEMPORARIES if torch._C._current_graph_task_id() != -1 else ACTIVATIONS

    def restart_maxima(self) -> None:
        """Restarts the maxima from the current state."""
        self.live = +self.live
        self.most, self.peak = self.live.copy(), self.live.copy()

    @contextmanager
    def purpose(self, name: str) -> Iterator[None]:
        """Records the storages that are created within the context under `name`."""
        before, self._purpose = self._purpose, name
        try:
            yield
        finally:
            self._purpose = before

    def record_results_as(self, name: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns the function, with the storages that it creates recorded under `name`."""

        def recording(*args: Any, **kwargs: Any) -> Result:
            with self.purpose(name):
                return function(*args, **kwargs)

        return recording

    def record_only_results(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns the function, of whose storages only those of its results are recorded."""

        def recording(*args: Any, **kwargs: Any) -> Result:
            with self.purpose(NOTHING):
                result = function(*args, **kwargs)
            self._record_new(tree_leaves(result), self._current_purpose)
            return result

        return recording

    def record_as(self, tensors: Iterable[Any], name: str, *, unless: Iterable[str] = ()) -> None:
        """Records tensors under `name` instead of their current purpose, except those whose purpose is in
        `unless`."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()  # of a DTensor
                if id(storage) not in self._entries or self._entries[id(storage)][2] not in unless:
                    self._record(storage, name)

    def _record_new(self, result: Iterable[Any], name: str) -> None:
        for tensor in result:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self._entries:
                    self._record(storage, name)

    def _record(self, storage: torch.UntypedStorage, name: str) -> None:
        key, size = id(storage), storage.nbytes()
        self._forget(key)
        self._entries[key] = weakref.ref(storage, lambda _: self._forget(key)), size, name
        self.live[name] += size
        self.most[name] = max(self.most[name], self.live[name])
        if self._on_device(self.live) > self._on_device(self.peak):
            self.peak = self.live.copy()

    def _forget(self, key: int) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.live[entry[2]] -= entry[1]

    def _on_device(self, bytes_by_purpose: Counter[str]) -> int:
        return sum(size for name, size in bytes_by_purpose.items() if name not in self._on_host)
