"""The trainer's side of each weight carrier on a pretended GPU: where its buffers are, and how often the host
waits for the device. What the readers do is beyond these traces (`carrier_trace`).
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.budgets import Blocking
from tests.cuda.carrier_trace import PROCESSES
from tests.cuda.cases import ADAPTERS, ALL, STAGES, Case
from tests.cuda.tracer import Tracer, blocking, lines_of, needs_pretence

pytestmark = needs_pretence
CASE = Case("qwen3", {"fsdp": 2})
SGLANG = {"type": "sglang", "dtype": "bfloat16", "tensor": PROCESSES, "count": 1, "weight_check": "none"}
TENSOR, BROADCAST, DISK = (SGLANG | {"weight_sync": carrier} for carrier in ("tensor", "broadcast", "disk"))
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
    case: Case = CASE
    """The trainer rank."""
    parked: bool = False
    """Whether the rank's state is in host memory while weights are handed over."""
    fp8: bool = False
    """Whether engines hold matrices in FP8."""
    exchanges: dict[str, int] = field(default_factory=dict)
    """How often each bucket is sent to other processes, by operation."""


WAIT = Blocking(waits=1)
HASHES = Blocking(waits=PROCESSES)
"""Reading the checksums, for each process of the engine."""
MOVED = Blocking(waits=2)
"""Comparing the merged matrices with those of the update before: the adapters' sums, and the matrices'."""
NATIVE = Carrier({"type": "native", "dtype": "bfloat16"}, update=WAIT)
ON_GPU = Carrier(TENSOR, bucket=WAIT, device="cuda:0", placement="colocated")
CARRIERS = {
    "segments of native engines": NATIVE,
    "segments, from parked ranks": replace(NATIVE, placement="colocated", parked=True),
    "segments, from two stages": replace(NATIVE, case=Case("qwen3", STAGES)),
    "segments, with everything in host memory": replace(NATIVE, case=Case("qwen3", {"fsdp": 2}, ALL)),
    "segments, with merged adapters": Carrier(
        NATIVE.engine | {"lora_sync": "merged"},
        update=WAIT + MOVED,
        case=Case("qwen3", {"fsdp": 2}, ADAPTERS),
    ),
    "segments of adapters": Carrier(
        NATIVE.engine | {"lora_sync": "adapters"},
        update=WAIT + MOVED,
        case=Case("qwen3", {"fsdp": 2}, ADAPTERS),
    ),
    "one buffer in host memory": Carrier(TENSOR, update=WAIT, device="cpu"),
    "buckets in host memory": Carrier(TENSOR | {"weight_bucket": 1}, bucket=WAIT, device="cpu"),
    "host memory, checked": Carrier(TENSOR | CHECKED, update=WAIT + HASHES, device="cpu"),
    "host memory, in FP8": Carrier(TENSOR, update=WAIT, device="cpu", fp8=True),
    "buckets on a GPU": ON_GPU,
    "buckets on a GPU, from parked ranks": replace(ON_GPU, parked=True),
    "buckets on a GPU, in FP8": replace(ON_GPU, fp8=True),
    "buckets on a GPU, from two stages": replace(
        ON_GPU, case=Case("qwen3", STAGES), exchanges={"broadcast_": 1}
    ),
    "buckets on a GPU, with merged adapters": Carrier(
        TENSOR | {"lora_sync": "merged"},
        bucket=WAIT,
        update=MOVED,
        device="cuda:0",
        placement="colocated",
        case=Case("qwen3", {"fsdp": 2}, ADAPTERS),
    ),
    "disk": Carrier(DISK, bucket=WAIT),
    "disk, checked": Carrier(DISK | CHECKED, bucket=WAIT, update=HASHES),
    "broadcast": Carrier(BROADCAST, exchanges={"broadcast": 1}),
    "broadcast, checked": Carrier(BROADCAST | CHECKED, update=HASHES, exchanges={"broadcast": 1}),
    "broadcast, of one stage of two": Carrier(
        BROADCAST, case=Case("qwen3", STAGES), exchanges={"broadcast": 1}
    ),
}


SLOW = (
    "segments, with everything in host memory",
    "segments, with merged adapters",
    "host memory, checked",
    "buckets on a GPU, from parked ranks",
    "buckets on a GPU, with merged adapters",
    "disk, checked",
)
"""Each has its buffers from one carrier above, and what it costs beside from another."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CARRIERS]
)
def test_handing_weights_over_blocks_as_often_as_the_carrier_needs(name: str, tracer: Tracer, tmp_path: Path):
    carrier, case = CARRIERS[name], CARRIERS[name].case
    folder = tracer.model(case.model, case.layers)
    gpus = case.ranks + (PROCESSES if carrier.placement == "disaggregated" else 0)
    cluster = {"gpus_per_node": gpus, "placement": carrier.placement}
    engine = carrier.engine | ({"model": str(fp8_folder(folder, tmp_path))} if carrier.fp8 else {})
    trace = tracer.ask(
        "tests.cuda.carrier_trace",
        spec=case.spec(folder) | {"engine": engine, "cluster": cluster},
        folder=str(folder),
        rank=case.rank,
        weights_folder=str(tmp_path / "weights"),
        parked=carrier.parked,
    )
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    result = trace["result"]
    assert result["devices"] == ([carrier.device] if carrier.device else [])
    budget = carrier.bucket * result["buckets"] + carrier.update
    for update in ("first update", "second update"):
        phase = trace["phases"][update]
        assert blocking(phase["counts"]) == budget, lines_of(phase)
        sent = {operation: count for operation, count in phase["collectives"].items() if "uint8" in operation}
        assert sent == {f"{key} uint8": count * result["buckets"] for key, count in carrier.exchanges.items()}


def fp8_folder(model: Path, folder: Path) -> Path:
    """Returns the folder of a model whose engines hold matrices in blocks of FP8: only its config.json."""
    config = json.loads((model / "config.json").read_text())
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder
