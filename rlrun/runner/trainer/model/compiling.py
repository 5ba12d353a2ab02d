"""Compiles a decoder's layers with torch.compile, which fuses the arithmetic between attention and experts.

All layers share one compilation. Attention and experts are left out: they already are kernels, and depend on
lengths that differ in every micro-batch, so that they would be compiled again and again.
"""

from typing import Any

import torch

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.trainer.compat.device import ON_CPU, has_triton
from rlrun.runner.trainer.model.decoder import PackedDecoder


def compile_layers(decoder: PackedDecoder) -> None:
    """Has every layer compiled at its first use. Raises ValueError if this machine cannot compile."""
    check_compiler()
    for block in decoder.layers.values():
        # Inside the checkpoint wrapper, so that recomputation in the backward pass runs compiled code too.
        inner = getattr(block, "_checkpoint_wrapped_module", block)
        _leave_out(inner.attention.inner_attention)
        if inner.moe_enabled:
            _leave_out(inner.moe)
        inner.compile(dynamic=True)


def check_compiler() -> None:
    """Raises ValueError, with the remedy, if torch has no compiler."""
    if ON_CPU and find_compiler() is None:
        raise ValueError(
            "trainer.compile = true needs a C++ compiler, and none was found: install g++, name a compiler "
            "in CXX, or remove trainer.compile"
        )
    if not ON_CPU and not has_triton():
        raise ValueError(
            "trainer.compile = true needs triton, which this environment or GPU lacks: install it, or "
            "remove trainer.compile"
        )


def _leave_out(module: Any) -> None:
    module.forward = torch.compiler.disable(module.forward)
