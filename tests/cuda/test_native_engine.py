"""The native engine on a pretended GPU: how often the host waits for the device in each phase."""

import pytest

from tests.cuda.recording import ASYNC_UPLOAD, DOWNLOAD, UPLOAD, WAIT
from tests.cuda.tracer import Tracer, needs_pretence

pytestmark = needs_pretence
NUM_WEIGHTS = 25
"""Tensors of the model."""
BUDGET = {
    "prefill": {DOWNLOAD: 2, ASYNC_UPLOAD: 4},
    "decode": {DOWNLOAD: 1, ASYNC_UPLOAD: 2},
    "prefill with limits": {DOWNLOAD: 2, ASYNC_UPLOAD: 4, UPLOAD: 1},
    "decode with limits": {DOWNLOAD: 1, ASYNC_UPLOAD: 2},
    "score": {DOWNLOAD: 1, ASYNC_UPLOAD: 2},
    "first update": {WAIT: 1, ASYNC_UPLOAD: NUM_WEIGHTS},
    "second update": {WAIT: 1, ASYNC_UPLOAD: NUM_WEIGHTS},
    "sleep and wake": {WAIT: 1, ASYNC_UPLOAD: NUM_WEIGHTS},
}
"""A phase with a prefill also decodes a token. With limits, the first step uploads new stop tokens."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_step_waits_once_for_its_tokens(dtype: str, tracer: Tracer) -> None:
    trace = tracer.ask("tests.cuda.engine_trace", folder=str(tracer.model("qwen3", 2)), dtype=dtype)
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    assert trace["result"] == {"weights": "cuda:0", "cache": "cuda:0"}
    phases = {name: phase for name, phase in trace["phases"].items() if name != "start"}
    lines = {name: phase["lines"] for name, phase in phases.items()}
    assert {name: phase["counts"] for name, phase in phases.items()} == BUDGET, lines
