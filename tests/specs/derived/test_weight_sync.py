"""Named rows: a layout, the carrier that it gets, and whether buckets lie on the GPUs themselves."""

from typing import Any

import pytest

from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.lora_sync import why_merged
from rlrun.specs.derived.weight_sync import buckets_on_gpus, carrier_of, shares_memory
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.weight_carriers import CHOSEN, WeightCarrier

GPUS = {"gpus_per_node": 4}
NODES = {"nodes": 2, "address": "h:1", **GPUS}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, int], str, bool]] = {
    "a CPU": ({}, {}, {}, "tensor", False),
    "a CPU, buckets": ({}, {"weight_bucket": 8}, {}, "tensor", False),
    "two CPUs": ({"nodes": 2}, {}, {}, "broadcast", False),
    "two CPUs, sleeping": ({"nodes": 2}, {"sleep": True}, {}, "disk", False),
    "GPUs apart": (GPUS | {"placement": "disaggregated"}, {"weight_bucket": 8}, {}, "tensor", False),
    "nodes apart": (NODES | {"placement": "disaggregated"}, {}, {"fsdp": 4}, "broadcast", False),
    "shared GPUs": (GPUS, {}, {"fsdp": 4}, "tensor", True),
    "shared GPUs, buckets": (GPUS, {"weight_bucket": 8, "tensor": 2}, {"fsdp": 4}, "tensor", True),
    "more servers than ranks": (GPUS, {"weight_bucket": 8, "count": 4}, {"fsdp": 2}, "tensor", False),
    "a pipeline": (GPUS, {}, {"pipeline": 4}, "tensor", True),
    "shared nodes": (NODES, {}, {"fsdp": 8}, "tensor", True),
    "shared nodes, a pipeline": (NODES, {"tensor": 8}, {"pipeline": 2, "fsdp": 4}, "tensor", True),
    "shared nodes, more servers than ranks": (NODES, {"count": 8}, {"fsdp": 4}, "disk", False),
    "shared nodes, as files": (NODES, {"weight_sync": "disk"}, {"fsdp": 8}, "disk", False),
}


def spec_of(cluster: dict[str, Any], engine: dict[str, Any], parallel: dict[str, int], **more: Any) -> Spec:
    document = {"model": {"path": "m"}, "data": {"path": "d"}, "cluster": cluster, **more}
    document["trainer"] = {"steps": 1, "parallel": parallel}
    return Spec.model_validate(document | {"engine": {"type": "sglang", **engine}})


def findings_about(spec: Spec, key: str) -> list[str]:
    return [finding.message for finding in conflicts(Job(spec)) if finding.path == ("engine", key)]


@pytest.mark.parametrize("name", ROWS)
def test_the_way_of_weights(name: str) -> None:
    *settings, carrier, on_devices = ROWS[name]
    spec = spec_of(*settings)
    assert carrier_of(spec).name == carrier
    assert buckets_on_gpus(spec) == on_devices
    assert shares_memory(spec) == (carrier == "tensor" and not on_devices)
    assert not findings_about(spec, "weight_sync")


@pytest.mark.parametrize(
    ("cluster", "engine", "reason"),
    [
        ({}, {"weight_sync": "disk"}, None),
        ({}, {"weight_sync": "tensor"}, None),
        ({"nodes": 2}, {"weight_sync": "disk"}, None),
        ({"nodes": 2}, {"type": "native"}, None),
        ({}, {"dtype": "float32"}, "in float32"),
        ({}, {"type": "native"}, "use the weights in its memory"),
        ({"nodes": 2}, {}, "broadcasts whole tensors"),
        ({}, {"type": "external", "urls": ["http://h:1"]}, "does not start"),
        (GPUS, {}, "engines that sleep"),
        ({}, {"weight_sync": "disk", "model": "fp8"}, "quantised"),
        ({}, {"weight_sync": "disk", "sglang": {"quantization": "fp8"}}, "quantised"),
    ],
)
def test_which_engines_get_elements_that_changed(
    cluster: dict[str, Any], engine: dict[str, Any], reason: str | None
) -> None:
    spec = spec_of(cluster, {"weight_delta": "elements", "dtype": "bfloat16", **engine}, {})
    findings = findings_about(spec, "weight_delta")
    assert [reason in message for message in findings if reason is not None] == [True] * len(findings)
    assert len(findings) == (reason is not None)


@pytest.mark.parametrize("carrier", CHOSEN.values(), ids=CHOSEN)
def test_servers_that_do_not_take_a_carrier_are_told_why(carrier: WeightCarrier) -> None:
    for engine in {"sglang", "external"} - set(carrier.engines):
        spec = spec_of({}, {"type": engine, "urls": ["http://h:1"], "weight_sync": carrier.name}, {})
        assert carrier_of(spec) is not carrier
        assert findings_about(spec, "weight_sync")


def test_native_engines_on_several_nodes_read_files() -> None:
    assert shares_memory(spec_of({}, {"type": "native"}, {}))
    assert not shares_memory(spec_of({"nodes": 2}, {"type": "native"}, {}))
    assert carrier_of(spec_of({"nodes": 2}, {"type": "native"}, {})).name == "disk"
    assert why_merged(spec_of({}, {"type": "native"}, {})) is None
    reason = why_merged(spec_of({"nodes": 2}, {"type": "native"}, {}))
    assert reason == "native engines on several nodes read whole models from files"
