"""Records what a program does with a GPU: waits of the host, copies, collectives, and what would fail.

    operation on fake tensors ─▶ Recorder (a dispatch mode) ─▶ Recording: counts by kind and line of rlrun
    torch.cuda's functions    ─▶ fake_cuda                  ─▶

A *blocking* event keeps the host from launching the next kernel, so that the device may run out of work.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAIT, UPLOAD, DOWNLOAD = "wait", "upload", "download"
"""The kinds of blocking events: the host waits for the device, or for a copy to or from it."""
ASYNC_UPLOAD, ASYNC_DOWNLOAD = "async upload", "async download"

NCCL_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    }
)
"""What torch can give to NCCL (ProcessGroupNCCL's ncclDataType table)."""

aten = torch.ops.aten
READ_ONE = frozenset({aten._local_scalar_dense.default, aten.item.default})
READS = READ_ONE | {aten.equal.default, aten.is_nonzero.default}
"""Operations that return a tensor's content to the host."""
DYNAMIC = frozenset(
    {
        aten.nonzero.default,
        aten.masked_select.default,
        aten._unique2.default,
        aten.unique_dim.default,
        aten.unique_consecutive.default,
        aten.bincount.default,
        aten.repeat_interleave.Tensor,
    }
)
"""Operations whose result has a shape that depends on content, for which the host waits (unless it is named
in `output_size`)."""
COPIES = frozenset(
    {aten._to_copy.default, aten.copy_.default, aten.copy.default, aten._foreach_copy_.default}
)
INDEXING = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default})
COLLECTIVES = ("c10d", "_c10d_functional")
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_ROOT = Path(__file__).parents[2]
_RLRUN, _TORCHTITAN = str(_ROOT / "rlrun") + "/", "site-packages/torchtitan/"


class PinnedStorages:
    """The storages in host memory that a program asked to be page-locked."""

    def __init__(self) -> None:
        self._storages: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Marks a tensor's storage."""
        storage = tensor.untyped_storage()
        self._storages[id(storage)] = weakref.ref(storage)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        reference = self._storages.get(id(storage))
        return reference is not None and reference() is storage


@dataclass
class Recording:
    """Counts of events by kind and place."""

    events: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By kind, operation and line."""
    collectives: Counter[str] = field(default_factory=Counter)
    """By operation and dtype."""
    defects: Counter[str] = field(default_factory=Counter)
    """What NCCL or CUDA would refuse."""
    pinned: PinnedStorages = field(default_factory=PinnedStorages)

    def note(self, kind: str, operation: str) -> None:
        """Counts an event at the line of rlrun that runs now."""
        self.events[kind, operation, current_line()] += 1

    def note_copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        """Counts a copy between host and device. It blocks unless it was told not to and the host's memory is
        page-locked: CUDA copies from and to other memory through a buffer of its own, and waits.
        """
        if not source.numel():
            return
        kinds = source.device.type, target.device.type
        if kinds == ("cpu", "cuda"):
            overlaps = non_blocking and source in self.pinned
            self.note(ASYNC_UPLOAD if overlaps else UPLOAD, "copy")
        elif kinds == ("cuda", "cpu"):
            overlaps = non_blocking and target in self.pinned
            self.note(ASYNC_DOWNLOAD if overlaps else DOWNLOAD, "copy")

    def note_collective(self, operation: str, tensors: list[torch.Tensor]) -> None:
        """Counts a collective, and the tensors that NCCL does not take."""
        for tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            if tensor.device.type != "cuda":
                self.defects[f"{operation} of a tensor on {tensor.device.type}, at {current_line()}"] += 1
            elif tensor.dtype not in NCCL_DTYPES:
                self.defects[f"{operation} of {dtype}, which NCCL lacks, at {current_line()}"] += 1
        if tensors:
            dtype = str(tensors[0].dtype).removeprefix("torch.")
            self.collectives[f"{operation} {dtype}"] += 1

    def take(self) -> dict[str, Any]:
        """Returns the counts as plain data, and begins again with none (defects remain)."""
        kinds: Counter[str] = Counter()
        for (kind, _, _), count in self.events.items():
            kinds[kind] += count
        result = {
            "counts": dict(kinds),
            "lines": sorted([count, *key] for key, count in self.events.items()),
            "collectives": dict(sorted(self.collectives.items())),
        }
        self.events.clear()
        self.collectives.clear()
        return result


RECORDING = Recording()
"""What this process does."""


class Recorder(TorchDispatchMode):
    """Counts the operations of its context. To be entered within torch's FakeTensorMode.

    Reading a scalar returns 1: fake tensors have no content.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around each call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation, and counts it."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a tensor's device or layout: as frequent as all others together
            return func(*args, **kwargs)
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a DTensor: its inner tensors are dispatched here as well
        if func in READS and isinstance(args[0], FakeTensor):
            return self._read(func, args)
        if torch.is_inference_mode_enabled():  # there operations arrive whole that autograd splits elsewhere
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._note_shapes(func, args, kwargs)
        if func.namespace in COLLECTIVES:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            self._recording.note_collective(func.overloadpacket.__name__, tensors)
        pinned = kwargs.pop("pin_memory", None)
        if _is_cuda(kwargs.get("device")) and not _within_fake_mode():
            kwargs["device"] = torch.device("meta")  # such as FSDP's empty buffers, while a model is laid out
        result = func(*args, **kwargs)
        if pinned:
            self._recording.pinned.add(result)
        if func in COPIES:
            self._note_copies(func, args, kwargs, result)
        return result

    def _read(self, func: Any, args: tuple[Any, ...]) -> Any:
        tensor = args[0]
        if tensor.device.type == "cuda":
            self._recording.note(WAIT, func.overloadpacket.__name__)
        if func not in READ_ONE:
            return True
        return {torch.bool: True}.get(tensor.dtype, 1.0 if tensor.dtype.is_floating_point else 1)

    def _note_shapes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts operations that wait because their result's shape depends on content."""
        waits = func in DYNAMIC and args[0].device.type == "cuda" and kwargs.get("output_size") is None
        if func in INDEXING:
            indices = [index for index in args[1] if index is not None]
            waits = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
            waits &= args[0].device.type == "cuda"
        if waits:
            self._recording.note(WAIT, func.overloadpacket.__name__)

    def _note_copies(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is aten._to_copy.default:
            non_blocking = bool(kwargs.get("non_blocking"))
            if non_blocking and args[0].device.type == "cuda" and result.device.type == "cpu":
                self._recording.pinned.add(result)  # torch page-locks what it allocates for such a copy
            self._recording.note_copy(args[0], result, non_blocking)
            return
        targets, sources = args[:2]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        if isinstance(targets, torch.Tensor):
            targets, sources = [targets], [sources]
        for source, target in zip(sources, targets, strict=True):
            self._recording.note_copy(source, target, non_blocking)


def _is_cuda(device: torch.device | None) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _within_fake_mode() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def current_line() -> str:
    """Returns the innermost line of rlrun that runs now, and that of torchtitan where rlrun has called it."""
    inner = ""
    for name, line in _frames():
        if name.startswith(_RLRUN):
            return f"{name.removeprefix(_RLRUN)}:{line}{inner}"
        if not inner and _TORCHTITAN in name:
            inner = f" > torchtitan/{name.partition(_TORCHTITAN)[2]}:{line}"
    return inner.removeprefix(" > ") or "outside of rlrun"


def _frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
