"""The trainer's side of each weight carrier on a pretended GPU: where its buffers are, and how often the host
waits for the device. What the readers do is beyond these traces (`carrier_trace`).
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.cuda.budgets import Blocking
from tests.cuda.carrier_trace import PROCESSES
from tests.cuda.cases import Case
from tests.cuda.tracer import Tracer, blocking, lines_of, needs_pretence

pytestmark = needs_pretence
CASE = Case("qwen3", {"fsdp": 2})
SGLANG = {"type": "sglang", "dtype": "bfloat16", "tensor": PROCESSES, "count": 1, "weight_check": "none"}
TENSOR, BROADCAST = SGLANG | {"weight_sync": "tensor"}, SGLANG | {"weight_sync": "broadcast"}
CHECKED = {"weight_check": "all"}
NOTHING = Blocking()


@dataclass(frozen=True)
class Carrier:
    """A carrier, and what it costs."""

    engine: dict[str, Any]
    bucket: Blocking = NOTHING
    """What each bucket blocks the host."""
    update: Blocking = NOTHING
    """What blocks the host once."""
    device: str | None = None
    """Where the buffers are that servers open; None where they open none."""
    placement: str = "disaggregated"
    """Where the engines are; "colocated": on the trainer's GPUs."""


WAIT = Blocking(waits=1)
HASHES = Blocking(waits=PROCESSES)
"""Reading the checksums, for each process of the engine."""
CARRIERS = {
    "segments of native engines": Carrier({"type": "native", "dtype": "bfloat16"}, update=WAIT),
    "one buffer in host memory": Carrier(TENSOR, update=WAIT, device="cpu"),
    "buckets in host memory": Carrier(TENSOR | {"weight_bucket": 1}, bucket=WAIT, device="cpu"),
    "host memory, checked": Carrier(TENSOR | CHECKED, update=WAIT + HASHES, device="cpu"),
    "buckets on a GPU": Carrier(TENSOR, bucket=WAIT, device="cuda:0", placement="colocated"),
    "broadcast": Carrier(BROADCAST),
    "broadcast, checked": Carrier(BROADCAST | CHECKED, update=HASHES),
}


@pytest.mark.parametrize("name", CARRIERS)
def test_handing_weights_over_blocks_as_often_as_the_carrier_needs(name: str, tracer: Tracer):
    carrier, folder = CARRIERS[name], tracer.model(CASE.model, CASE.layers)
    gpus = CASE.ranks + (PROCESSES if carrier.placement == "disaggregated" else 0)
    cluster = {"gpus_per_node": gpus, "placement": carrier.placement}
    spec = CASE.spec(folder) | {"engine": carrier.engine, "cluster": cluster}
    trace = tracer.ask("tests.cuda.carrier_trace", spec=spec, folder=str(folder), rank=CASE.rank)
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    result = trace["result"]
    assert result["devices"] == ([carrier.device] if carrier.device else [])
    budget = carrier.bucket * result["buckets"] + carrier.update
    for update in ("first update", "second update"):
        phase = trace["phases"][update]
        assert blocking(phase["counts"]) == budget, lines_of(phase)
        sent = phase["collectives"].get("broadcast uint8", 0)
        assert sent == (result["buckets"] if carrier.engine.get("weight_sync") == "broadcast" else 0)
