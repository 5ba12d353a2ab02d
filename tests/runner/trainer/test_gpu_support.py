"""FlashAttention 3 is registered with torch on Hopper GPUs, and refused with the reason elsewhere."""

import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import current_flash_attention_impl, restore_flash_attention_impl

from rlrun.runner.trainer.gpu_support import use_flash_attention

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    restore_flash_attention_impl(_raise_warn=False)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")


def test_a_hopper_gpu_with_the_package_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, (9, 0))
    operators = torch.library.Library("flash_attn_3", "DEF")
    operators.define("fwd(Tensor q) -> Tensor")
    operators.define("bwd(Tensor q) -> Tensor")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", types.ModuleType("flash_attn_interface"))
    use_flash_attention("FA3", GPU)
    assert current_flash_attention_impl() == "FA3"


def test_the_default_keeps_the_kernel_of_torch() -> None:
    use_flash_attention("FA2", torch.device("cpu"))
    assert current_flash_attention_impl() is None


@pytest.mark.parametrize(
    ("device", "capability", "message"),
    [
        (torch.device("cpu"), (0, 0), "needs a Hopper GPU .* and this rank has a CPU"),
        (GPU, (8, 0), "and this rank has NVIDIA A100"),
        (GPU, (9, 0), "flash_attn_interface cannot be used here .* install it on every node"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, capability: tuple[int, int], message: str
) -> None:
    pretend_gpu(monkeypatch, capability)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    with pytest.raises(ValueError, match=message):
        use_flash_attention("FA3", device)
