"""FlashAttention 3 (`trainer.flash_attention = "FA3"`): its exactness, and a step's time with it."""

from collections.abc import Callable, Mapping
from functools import partial

from torch.nn.attention import restore_flash_attention_impl

from benchmarks.gpu import kernels, step
from benchmarks.gpu.models import DEVICE
from benchmarks.gpu.results import Case, Measurement, Skipped
from rlrun.runner.trainer.gpu_support import use_flash_attention


def with_flash3(case: Callable[[], Measurement]) -> Measurement:
    """Runs a case with the kernels of FlashAttention 3."""
    try:
        use_flash_attention("FA3", DEVICE)
    except ValueError as reason:
        raise Skipped(str(reason)) from reason
    try:
        return case()
    finally:
        restore_flash_attention_impl(_raise_warn=False)


CASES: Mapping[str, Case] = {
    **{name: partial(with_flash3, case) for name, case in kernels.CASES.items()},
    "step 0.6B": partial(with_flash3, partial(step.step, "0.6B", flash_attention="FA3")),
    "step 4B": partial(
        with_flash3, partial(step.step, "4B", flash_attention="FA3", activation_checkpointing="full")
    ),
}
