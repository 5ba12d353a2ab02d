"""Makes torchtitan 0.3.0 run on a CPU: it picks an accelerator when it is imported, and has no CPU mode.

Without CUDA its device symbols are set to the CPU here; with CUDA nothing is changed. Every other module of
this package imports this one first. A process of a job sees only GPUs that are reserved for it, so that torch
finds one exactly where the spec asks for one (`rlrun.runner.trainer.process.check_device`).
"""

import importlib
import importlib.util
import sys
import types
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch.utils._triton import has_triton

__all__ = ["ON_CPU", "has_triton"]

ON_CPU = not torch.cuda.is_available()


class _CpuDevice:
    """`torch.cpu` with the additional functions that torchtitan expects of a device module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu returns a string

    def device_count(self) -> int:
        return 1

    def memory_stats(self, device: object = None) -> dict[str, int]:
        return defaultdict(int)

    def reset_peak_memory_stats(self, device: object = None) -> None:
        return None


def _use_cpu() -> None:
    """Sets torchtitan's device symbols, also in modules that are already loaded and hold copies of them."""
    import torchtitan.tools.utils as tools

    symbols = {
        "device_type": "cpu",
        "device_module": _CpuDevice(),
        "get_device_info": lambda: ("cpu", tools.device_module),
        "get_local_device": lambda: torch.device("cpu"),
    }
    loaded = [module for name, module in sys.modules.items() if name.startswith("torchtitan.")]
    for module in loaded:
        for name, value in symbols.items():
            if hasattr(module, name):
                setattr(module, name, value)
    # The router asks for float32 under autocast, which on CPU is a no-op with a warning.
    warnings.filterwarnings("ignore", message=".*CPU [Aa]utocast.*")


def _fake_triton_kernels() -> None:
    """Replaces a module of torchtitan that imports triton, for CUDA kernels that are not used here.

    CPU wheels of torch come without triton.
    """
    name = "torchtitan.distributed.minimal_async_ep.kernels"
    if importlib.util.find_spec("triton") is None and name not in sys.modules:
        fake_module = types.ModuleType(name)
        fake_module.__getattr__ = lambda symbol: None  # type: ignore[method-assign]
        sys.modules[name] = fake_module


def _import_attention() -> None:
    """Imports torchtitan's attention without compiling its FlexAttention, which is not used here.

    Otherwise the import brings torch's compiler with it, which takes more than a second.
    """
    compile_function = torch.compile
    torch.compile = lambda function, **options: function
    try:
        importlib.import_module("torchtitan.models.common.attention")
    finally:
        torch.compile = compile_function


# Checkpoints of one rank need no process group; torch says so at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
_fake_triton_kernels()
_import_attention()
if ON_CPU:
    _use_cpu()
