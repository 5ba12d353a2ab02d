"""The native engine on a pretended GPU: how often the host waits for the device in each phase."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.recording import ASYNC_UPLOAD, DOWNLOAD, UPLOAD, WAIT
from tests.cuda.tracer import compile_stub, needs_pretence, start
from tests.tiny_models import make_tiny_model

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


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_step_waits_once_for_its_tokens(dtype: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family="qwen3", num_hidden_layers=2)
    trace = traced(str(model), dtype, compile_stub(tmp_path))
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    lines = {name: phase["lines"] for name, phase in trace["phases"].items()}
    assert {name: phase["counts"] for name, phase in trace["phases"].items()} == BUDGET, lines


def traced(model: str, dtype: str, libraries: Path) -> dict[str, Any]:
    output, _ = start("tests.cuda.engine_trace", libraries, model, dtype).communicate(timeout=300)
    trace: dict[str, Any] = json.loads(output.splitlines()[-1])
    return trace
