"""What memory is used for, operation by operation: of tensors that have a shape and no content.

Every storage that an operation makes is entered under the purpose of the moment, and struck out when nobody
holds it any more; FSDP's gathered layers are storages that grow and shrink.
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
"""What serves it is not entered."""
_OURS = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class MemoryTrace(TorchDispatchMode):
    """Counts bytes by purpose while it is entered, within torch's FakeTensorMode."""

    def __init__(self, on_host: Iterable[str] = ()) -> None:
        """What serves the purposes `on_host` takes no device memory."""
        super().__init__()
        self._on_host = frozenset(on_host)
        self._entries: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._purpose: str | None = None
        self.live: Counter[str] = Counter()
        """Bytes by purpose now."""
        self.most: Counter[str] = Counter()
        """The most of each, whenever that was."""
        self.peak: Counter[str] = Counter()
        """Bytes by purpose when the device had most."""

    def __enter__(self) -> Self:
        self._resize = resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if id(storage) in self._entries:
                self._write(storage, self._entries[id(storage)][2])
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
        """Run an operation and enter what it made."""
        if any(kind not in _OURS for kind in types):
            return NotImplemented  # a DTensor and the like: what it consists of comes here too
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1  # of what has no content; only metrics and the gradient norm are asked for
        made = func(*args, **(kwargs or {}))
        if self._purpose == NOTHING:
            return made
        purpose = self._purpose or (TEMPORARIES if torch._C._current_graph_task_id() != -1 else ACTIVATIONS)
        self._enter_all(tree_leaves(made), purpose)
        if func.namespace == "fsdp":
            self.book(tree_leaves((args, kwargs, made)), GATHERED, besides=(PARAMETERS, COPIES))
        return made

    def begin(self) -> None:
        """Forget what was most so far."""
        self.live = +self.live
        self.most, self.peak = self.live.copy(), self.live.copy()

    @contextmanager
    def purpose(self, name: str) -> Iterator[None]:
        """Enter what is made meanwhile under `name`."""
        before, self._purpose = self._purpose, name
        try:
            yield
        finally:
            self._purpose = before

    def serving(self, name: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """The function, with what it makes entered under `name`."""

        def booked(*args: Any, **kwargs: Any) -> Result:
            with self.purpose(name):
                return function(*args, **kwargs)

        return booked

    def book(self, tensors: Iterable[Any], name: str, *, besides: Iterable[str] = ()) -> None:
        """Enter tensors under `name`, whatever they were entered under, unless it was one of `besides`."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()  # of a DTensor
                if id(storage) not in self._entries or self._entries[id(storage)][2] not in besides:
                    self._write(storage, name)

    def _enter_all(self, made: Iterable[Any], name: str) -> None:
        for tensor in made:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self._entries:
                    self._write(storage, name)

    def _write(self, storage: torch.UntypedStorage, name: str) -> None:
        key, size = id(storage), storage.nbytes()
        self._strike(key)
        self._entries[key] = weakref.ref(storage, lambda _: self._strike(key)), size, name
        self.live[name] += size
        self.most[name] = max(self.most[name], self.live[name])
        if self._on_device(self.live) > self._on_device(self.peak):
            self.peak = self.live.copy()

    def _strike(self, key: int) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.live[entry[2]] -= entry[1]

    def _on_device(self, bytes_by_purpose: Counter[str]) -> int:
        return sum(size for name, size in bytes_by_purpose.items() if name not in self._on_host)
