"""Replaces Triton kernels of SGLang that have no CPU form, when the modules that hold them are imported."""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from sgl_kernel.mamba import gated_norm

_FLA = "sglang.kernels.ops.attention.fla."


def _take_cpu_form(module: ModuleType) -> None:
    """The norm takes its CPU form for AMX only."""
    module._use_cpu = True  # type: ignore[attr-defined]


def _norm_forward(module: ModuleType) -> None:
    def forward(self: Any, x: torch.Tensor, g: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return gated_norm(x, self.weight, g, self.eps)

    module.FusedRMSNormGated.forward = forward


def _shared_gate(module: ModuleType) -> None:
    """The gate of Qwen3-Next's shared expert."""

    def launch(
        hidden: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor, out: torch.Tensor, *, do_add: bool
    ) -> None:
        part = (hidden @ gate.reshape(-1, 1)).sigmoid() * shared
        out.add_(part) if do_add else out.copy_(part)

    module._launch_fused_gate_sigmoid_mul = launch  # type: ignore[attr-defined]


def _allow_amx_attention(module: ModuleType) -> None:
    """Its attention is the only one on CPUs that verifies drafts, and has stand-ins (`speculative`)."""
    platform = module.get_platform

    class Platform:
        has_amx = True

        def __getattr__(self, name: str) -> Any:
            return getattr(platform(), name)

    if "intel_amx" in sys.argv:
        module.get_platform = Platform  # type: ignore[attr-defined]


PATCHES = {
    "sglang.srt.arg_groups.overrides": _allow_amx_attention,
    "sglang.kernels.ops.elementwise.elementwise": _shared_gate,
    _FLA + "layernorm_gated": _take_cpu_form,
    _FLA + "fused_norm_gate": _norm_forward,
}
if os.environ.get("SGLANG_CPU_ON_POLICY_TARGET"):
    from sgl_kernel.on_policy_target import PATCHES as OF_TARGET

    PATCHES |= OF_TARGET


class Patcher(MetaPathFinder):
    """Runs a module's patch after the module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        patch = PATCHES.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if patch else None
        if spec is None or spec.loader is None or patch is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


for _name in [name for name in PATCHES if name in sys.modules]:
    PATCHES.pop(_name)(sys.modules[_name])
sys.meta_path.insert(0, Patcher())
