"""torch.compile for the layers of a decoder: the arithmetic between attention and experts, fused.

Layers are alike, so that one compilation serves them all. Attention over documents and experts' products are
kernels already, and depend on lengths that every micro-batch has others of: they are called as they are.
"""

from typing import Any

import torch

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.trainer.compat.device import ON_CPU, has_triton
from rlrun.runner.trainer.model.decoder import PackedDecoder


def compile_layers(decoder: PackedDecoder) -> None:
    """Compile every layer at its first use. ValueError where this machine cannot."""
    check_compiler()
    for block in decoder.layers.values():
        # what is computed again in the backward pass is compiled code as well
        inner = getattr(block, "_checkpoint_wrapped_module", block)
        _leave_out(inner.attention.inner_attention)
        if inner.moe_enabled:
            _leave_out(inner.moe)
        inner.compile(dynamic=True)


def check_compiler() -> None:
    """ValueError, with the cure, where torch has nothing to compile with."""
    if ON_CPU and find_compiler() is None:
        raise ValueError(
            "trainer.compile = true needs a C++ compiler, and there is none: install g++, name one in CXX, "
            "or leave it out"
        )
    if not ON_CPU and not has_triton():
        raise ValueError(
            "trainer.compile = true needs triton, which this environment or GPU lacks: install it, or leave "
            "it out"
        )


def _leave_out(module: Any) -> None:
    module.forward = torch.compiler.disable(module.forward)
