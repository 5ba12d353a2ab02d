"""Makes torch believe that this machine has one H200, for tensors without content.

Needs the libraries of `stub.c` in the process, and torch's wheel with CUDA. Call `install` before anything
else of torch is used: torchtitan looks for a GPU when it is imported. It cannot be undone, so only child
processes of tests do it.
"""

import collections
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.cuda.recording import WAIT, Recording

GIB = 2**30
PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    total_memory=139 * GIB,
    major=9,
    minor=0,
    multi_processor_count=132,
    uuid="00000000-0000-0000-0000-000000000000",
    L2_cache_size=60 * 2**20,
    gcnArchName="",
    warp_size=32,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=232448,
)
WITHOUT_EFFECT = (
    "init",
    "_lazy_init",
    "set_device",
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "manual_seed_all",
    "set_rng_state",
)


class Context:
    """A context that does nothing: a device, a stream."""

    def __init__(self, *args: Any) -> None:
        pass

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def install(recording: Recording) -> None:
    """Installs the device; what blocks the host is counted in `recording`."""
    import torch.utils._device

    torch.utils._device._device_constructors()  # lists torch's functions before they are replaced
    FakeTensorMode.avoid_device_init = property(lambda self: True)
    fake_impls.op_implementations_dict.pop(torch.ops.aten._local_scalar_dense.default, None)
    _install_device()
    _install_streams(recording)
    _install_content(recording)
    _install_pinned_memory(recording)
    _install_object_collectives(recording)
    _install_attention()


def _install_device() -> None:
    cuda, accelerator = torch.cuda, torch.accelerator
    cuda.is_available = lambda: True
    accelerator.is_available = lambda: True
    cuda.device_count = lambda: 1
    accelerator.device_count = lambda: 1
    cuda.current_device = lambda: 0
    accelerator.current_device_index = lambda: 0
    cuda.is_initialized = lambda: True
    cuda.get_device_properties = lambda device=None: PROPERTIES
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_name = lambda device=None: PROPERTIES.name
    cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda.mem_get_info = lambda device=None: (100 * GIB, 139 * GIB)
    cuda.memory_stats = lambda device=None: collections.defaultdict(int)
    cuda.max_memory_allocated = lambda device=None: 0
    cuda.memory_allocated = lambda device=None: 0
    cuda.get_rng_state = lambda device=None: torch.zeros(16, dtype=torch.uint8)
    for name in WITHOUT_EFFECT:  # each its own function: dynamo keeps rules by function
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.device = cuda._DeviceGuard = Context
    cuda._maybe_exchange_device = lambda device: 0
    cuda._exchange_device = lambda device: 0
    accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cuda")


def _install_streams(recording: Recording) -> None:
    def waiting(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: recording.note(WAIT, name)

    class Event:
        """An event that has always happened."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def record(self, *args: Any) -> None:
            pass

        wait = record
        synchronize = waiting("Event.synchronize")

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: "Event") -> float:
            return 0.0

    class Stream(Context):
        """A stream whose work is always done."""

        device, device_type, device_index = torch.device("cuda", 0), 1, 0
        stream_id = cuda_stream = 0
        synchronize = waiting("Stream.synchronize")

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def wait_stream(self, stream: "Stream") -> None:
            pass

        wait_event = wait_stream

        def record_event(self, event: Event | None = None) -> Event:
            return event or Event()

        def is_capturing(self) -> bool:
            return False

        def query(self) -> bool:
            return True

    stream = Stream()
    torch.Event = torch.cuda.Event = Event
    torch.cuda.Stream, torch.cuda.stream, torch.cuda.StreamContext = Stream, Context, Context
    torch.cuda.synchronize = waiting("synchronize")
    torch.accelerator.synchronize = waiting("synchronize")
    torch.cuda.current_stream = torch.cuda.default_stream = lambda device=None: stream
    torch.accelerator.current_stream = lambda device=None: stream
    torch.Tensor.record_stream = lambda self, stream: None


def _install_content(recording: Recording) -> None:
    """Returns zeros or ones where a program reads a fake tensor's content as a list or an array."""
    real_tolist = torch.Tensor.tolist

    def tolist(self: torch.Tensor) -> Any:
        if not isinstance(self, FakeTensor):
            return real_tolist(self)
        if self.device.type == "cuda":
            recording.note(WAIT, "tolist")
        return np.ones(tuple(self.shape), bool if self.dtype == torch.bool else int).tolist()

    def numpy(self: torch.Tensor, **kwargs: Any) -> Any:
        if self.device.type == "cuda":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if self.dtype == torch.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.zeros(tuple(self.shape), str(self.dtype).removeprefix("torch."))

    FakeTensor.tolist, FakeTensor.numpy = tolist, numpy


def _install_pinned_memory(recording: Recording) -> None:
    def pin_memory(self: torch.Tensor, *args: Any) -> torch.Tensor:
        pinned = self.clone()
        recording.pinned.add(pinned)
        return pinned

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = lambda self, *args: self in recording.pinned


def _install_object_collectives(recording: Recording) -> None:
    """Gives every rank this rank's object: there are no others. With NCCL objects travel as tensors on the
    device, for which the host waits.
    """

    def all_gather_object(objects: list[Any], mine: Any, group: Any = None) -> None:
        recording.note(WAIT, "all_gather_object")
        objects[:] = [mine] * len(objects)

    dist.all_gather_object = all_gather_object


def _install_attention() -> None:
    """Computes attention with matrix products: torch chooses a kernel by properties that the device lacks."""

    def attention(  # noqa: PLR0917
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> torch.Tensor:
        product = torch.ops.aten._scaled_dot_product_attention_math
        output: torch.Tensor = product(query, key, value, attn_mask, dropout_p, is_causal, **settings)[0]
        return output

    torch.nn.functional.scaled_dot_product_attention = attention
