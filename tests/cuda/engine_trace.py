"""Traces the native engine on a pretended GPU: `python -m tests.cuda.engine_trace MODEL DTYPE` prints JSON.

phases of a Scheduler and of an Engine on fake tensors ─▶ {"phases": …, "defects": …, "error": …}
"""

from tests.cuda import fake_cuda
from tests.cuda.recording import Recorder, Recording

RECORDING = Recording()
if __name__ == "__main__":
    fake_cuda.install(RECORDING)

# ruff: noqa: E402
# isort: split
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.engine import loading
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model import torch_ops
from rlrun.runner.engines.native.model.config import weight_shapes
from tests.cuda.trainer_trace import own_lines

LIMITS = {"top_p": 0.9, "top_k": 5, "temperature": 0.0, "min_new_tokens": 2, "stop_token_ids": (3,)}


def main(folder: str, dtype: str) -> None:
    """Prints what the engine did in each phase; `error` is None or where it failed."""
    phases: dict[str, Any] = {}
    error = None
    loading.read_folder = lambda folder, architecture, into: None  # safetensors makes tensors of storages
    torch_ops.functional = SimpleNamespace(  # torch asks a driver which attention to take
        silu=torch.nn.functional.silu,
        linear=torch.nn.functional.linear,
        scaled_dot_product_attention=dense_attention,
    )
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), InferenceRecorder(RECORDING):
            setup = EngineSetup(folder, dtype=dtype, max_running=8, max_length=256, device="cuda")  # type: ignore[arg-type]
            loaded = loading.load(setup)
            RECORDING.take()
            for name in phases_of(loaded):
                phases[name] = RECORDING.take()
    except Exception as failure:
        error = own_lines(failure)
    print(json.dumps({"phases": phases, "defects": dict(RECORDING.defects), "error": error}))


def phases_of(loaded: loading.LoadedEngine) -> Iterator[str]:
    """Runs one phase after the other, and yields its name when it is over."""
    scheduler = loaded.scheduler
    yield from steps_of(scheduler, {}, "")
    yield from steps_of(scheduler, LIMITS, " with limits")
    scheduler.score([np.arange(10, dtype=np.int32), np.arange(20, dtype=np.int32)])
    yield "score"
    engine = Engine(loaded)
    engine._thread = SimpleNamespace(call=lambda function: function())
    engine._pinned_segments = PretendedSegments()
    attached = SimpleNamespace(tensors=host_tensors(loaded.architecture, loaded.dtype), close=lambda: None)
    for update in ("first update", "second update"):
        engine._copy(attached, 1)
        yield update
    engine.release(["weights", "kv_cache"])
    engine.restore(["weights"])
    engine._copy(attached, 2)
    engine.restore(["kv_cache"])
    yield "sleep and wake"


def steps_of(scheduler: Scheduler, params: dict[str, Any], label: str) -> Iterator[str]:
    """Starts four samples of two prompts, then decodes a token of each."""
    sampling = SamplingParams(max_new_tokens=6, **params)
    samples = [
        SampleInProgress(f"{k}", np.arange(10 + k // 2, dtype=np.int32), sampling, k) for k in range(4)
    ]
    scheduler.add(group_samples(samples))
    scheduler.step()
    yield f"prefill{label}"
    scheduler.step()
    yield f"decode{label}"
    scheduler.abort(lambda sample: True, "by the trace")


class InferenceRecorder(Recorder):
    """Also counts `Tensor.to`, which torch does not split up into a copy in inference mode."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation, and counts it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func in (torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout):
            RECORDING.note_copy(args[0], result, bool((kwargs or {}).get("non_blocking")))
        return result


class PretendedSegments:
    """Segments that are registered with CUDA already."""

    def tensors(self, attached: Any) -> dict[str, torch.Tensor]:
        return attached.tensors


def host_tensors(architecture: Architecture, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns the model's weights in page-locked memory of the host."""
    tensors = {name: torch.empty(shape, dtype=dtype) for name, shape in weight_shapes(architecture).items()}
    for tensor in tensors.values():
        RECORDING.pinned.add(tensor)
    return tensors


def dense_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Checks the devices of a dense attention's arguments."""
    mask = options.get("attn_mask")
    assert queries.device == keys.device == values.device
    assert mask is None or mask.device == queries.device
    return torch.empty_like(queries)


if __name__ == "__main__":
    main(*sys.argv[1:])
