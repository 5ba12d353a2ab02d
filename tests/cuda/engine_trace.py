"""What the native engine does on a pretended GPU: prefill, decoding, scoring, new weights, sleep."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.engine import loading
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.weights.carriers.reader import NewWeights
from tests.cuda.recording import RECORDING, Recorder

LIMITS = {"top_p": 0.9, "top_k": 5, "temperature": 0.0, "min_new_tokens": 2, "stop_token_ids": (3,)}


def trace(
    end_phase: Callable[[str], None], folder: str, dtype: Literal["float32", "bfloat16"]
) -> dict[str, str]:
    """Runs an engine's work in this thread; returns the devices of its weights and cache at the end."""
    # safetensors makes tensors of storages, which a fake tensor does not have
    nothing = SimpleNamespace(check=lambda needed: None, read=lambda into: None)
    loading.FolderTensors = lambda folder: nothing
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder(RECORDING):
        loaded = loading.load(EngineSetup(folder, dtype=dtype, max_running=8, max_length=256, device="cuda"))
        end_phase("start")
        for name in phases_of(loaded):
            end_phase(name)
    model = loaded.scheduler.model
    return {"weights": str(model.weights.norm.device), "cache": str(model.cache.keys.device)}


def phases_of(loaded: loading.LoadedEngine) -> Iterator[str]:
    """Runs one phase after the other, and yields its name when it is over."""
    scheduler = loaded.scheduler
    yield from steps_of(scheduler, {}, "")
    yield from steps_of(scheduler, LIMITS, " with limits")
    scheduler.score([np.arange(10, dtype=np.int32), np.arange(20, dtype=np.int32)])
    yield "score"
    engine = Engine(loaded)
    engine._thread = SimpleNamespace(call=called)
    tensors = host_tensors(loaded.architecture, loaded.dtype)
    for update in ("first update", "second update"):
        memory = engine._scheduler.model.weights.head
        engine.load(PinnedWeights(1, tensors))
        assert engine._scheduler.model.weights.head is memory, "a second copy of the model is allocated"
        yield update
    engine.release(["weights", "kv_cache"])
    engine.restore(["weights"])
    engine.load(PinnedWeights(2, tensors))
    engine.restore(["kv_cache"])
    yield "sleep and wake"


def called(function: Callable[[], None]) -> "Future[None]":
    """Calls a function in this thread, where the engine has one of its own."""
    future: Future[None] = Future()
    future.set_result(function())
    return future


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


class PinnedWeights(NewWeights):
    """Weights in memory that is registered with CUDA already."""

    def __init__(self, version: int, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(version)
        self.tensors = tensors

    def open(self, held: int | None) -> None:
        """Does nothing."""


def host_tensors(architecture: Architecture, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns the model's weights in page-locked memory of the host."""
    tensors = {name: torch.empty(shape, dtype=dtype) for name, shape in weight_shapes(architecture).items()}
    for tensor in tensors.values():
        RECORDING.pinned.add(tensor)
    return tensors
