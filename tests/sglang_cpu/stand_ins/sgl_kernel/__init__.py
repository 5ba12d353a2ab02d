"""Has every name, and kernels for Gated DeltaNet and for n-grams: nothing else calls one on a CPU
without AMX.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import torch

__version__ = "0.4.10"

# The buffer of routed experts is page-locked for GPUs, whether there are any or not.
if torch.version.cuda is None:
    torch.cuda.cudart = lambda: SimpleNamespace(
        cudaHostRegister=lambda _pointer, _size, _flags: 0, cudaHostUnregister=lambda _pointer: 0
    )

    # Adapters are kept in page-locked memory, which needs an accelerator.
    torch.Tensor.pin_memory = lambda self, *_, **__: self

    # A prefill server waits for the GPU before it hands its cache to a decode server.
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.Event = lambda **_: SimpleNamespace(
        record=lambda *_: None, wait=lambda *_: None, synchronize=lambda: None, query=lambda: True
    )

    def _unpinned(make: Any) -> Any:
        def make_unpinned(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
            return make(*args, **options)

        return make_unpinned

    for _name in ("tensor", "zeros", "empty", "ones", "full", "arange", "zeros_like", "empty_like"):
        setattr(torch, _name, _unpinned(getattr(torch, _name)))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return kernel


if torch.version.cuda is None:
    # `from sgl_kernel import mamba` would call the function above
    for _module in ("mamba", "patches", "speculative"):
        importlib.import_module(f"{__name__}.{_module}")
