"""How weights travel in named layouts of GPUs, and for how long: 450 GB/s in a node, 50 GB/s beyond.

Links reach 70 % of these figures; the model has 8.19 billion parameters of two bytes.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlrun.models.config_json import architecture, with_vision_tower
from rlrun.runner.planning.sync_time import changed_share, held_bytes, sync_bytes, sync_time
from rlrun.runner.weights.carriers.costs import COMPARISON
from tests.models.test_vision import PUBLISHED
from tests.resolved_specs import resolved
from tests.runner.planning.test_sizing import planned_job

SIZE = 2 * 8_190_735_360
NODES = {"nodes": 2, "gpus_per_node": 8, "address": "x:1"}
APART = NODES | {"placement": "disaggregated"}
ON_GPUS, LINK, NETWORK = "buckets of 512 MiB in GPU memory (CUDA IPC)", 315e9, 35e9
ROWS: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, Any], str, float]] = {
    "one node": ({}, {"fsdp": 8}, {}, ON_GPUS, SIZE * 7 / 8 / LINK),
    "two nodes": (NODES, {"fsdp": 16}, {}, ON_GPUS, SIZE * (15 / 16 / LINK + 1 / 2 / NETWORK / 8)),
    "replicas on two nodes": (NODES, {"replicate": 2, "fsdp": 8}, {}, ON_GPUS, SIZE * 7 / 8 / LINK),
    "a stage on each node": (
        NODES,
        {"pipeline": 2, "fsdp": 8},
        {},
        ON_GPUS,
        SIZE * (7 / 8 / 2 / LINK + 1 / NETWORK / 8),
    ),
    "two stages on a node": (
        {},
        {"pipeline": 2, "fsdp": 4},
        {},
        ON_GPUS,
        SIZE * (3 / 4 / 2 + 1 / 4 + 3 / 4) / LINK,
    ),
    "apart": (APART, {"fsdp": 8}, {}, "broadcast", SIZE / NETWORK),
    "apart, a pipeline": (
        APART,
        {"pipeline": 2, "fsdp": 4},
        {},
        "broadcast, a process group for each of 2 stages",
        SIZE / NETWORK,
    ),
    "a disk": (
        {},
        {"fsdp": 8},
        {"weight_sync": "disk"},
        "files on a shared disk",
        SIZE * (2 / 2e9 + 7 / 8 / LINK),
    ),
    "more servers than ranks": (
        {},
        {"fsdp": 4},
        {"count": 8},
        "the whole model in host memory",
        SIZE * (2 / 2e10 + 3 / 4 / LINK),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_time_follows_the_links(name: str) -> None:
    cluster, parallel, engine, way, seconds = ROWS[name]
    job = planned_job(
        cluster=cluster, trainer={"parallel": {"fsdp": 1} | parallel}, engine={"type": "sglang"} | engine
    )
    time = sync_time(job)
    assert time.way == way
    assert time.seconds == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("engine", "size", "what"),
    [
        ({"type": "sglang"}, 2 * 43_646_976, "adapters alone; the whole model has 15.3 GiB"),
        ({"type": "native"}, 4 * 43_646_976, "adapters alone; the whole model has 15.3 GiB"),
        ({"type": "sglang", "lora_sync": "merged"}, SIZE, "the merged model: engine.lora_sync"),
        ({"type": "external"}, SIZE, "the merged model: external engines only take whole models"),
    ],
)
def test_an_update_has_the_bytes_of_the_adapters(engine: dict[str, Any], size: int, what: str) -> None:
    ranks = 8 if engine["type"] == "external" else 4
    trainer = {"parallel": {"fsdp": ranks}, "lora": {"rank": 16, "alpha": 32}}
    job = planned_job(cluster={"placement": "disaggregated"}, trainer=trainer, engine=engine)
    assert sync_bytes(job) == (size, what)
    assert (sync_time(job).way == "adapters through host memory") == ("adapters" in what)


@pytest.mark.parametrize(
    ("engine", "way", "copies", "speed"),
    [
        ({"weight_sync": "disk"}, "changed elements on a shared disk", 1, 2e9),
        ({"weight_sync": "tensor"}, "changed elements in shared memory", 3, 2e10),
    ],
)
def test_elements_that_change(engine: dict[str, Any], way: str, copies: int, speed: float) -> None:
    settings = {"type": "sglang", "weight_delta": "elements", "dtype": "bfloat16", **engine}
    cluster = {"placement": "disaggregated", "gpus_per_node": 8}
    job = planned_job(cluster=cluster, trainer={"lr": 1e-6, "parallel": {"fsdp": 4}}, engine=settings)
    size, what = sync_bytes(job)
    assert size == pytest.approx(0.0424 * SIZE, rel=0.01)
    assert what == "elements that change at this lr; the model has 15.3 GiB"
    time = sync_time(job)
    assert time.way == way
    assert time.send == pytest.approx(2 * size / speed)
    assert time.gather == pytest.approx(SIZE * 3 / 4 / LINK + SIZE / COMPARISON)
    assert held_bytes(job) == copies * SIZE


@pytest.mark.parametrize(("lr", "std"), [(1e-6, 0.02), (1e-5, 0.02), (5e-5, 0.02), (1e-5, 0.05)])
def test_the_estimated_share_of_changed_weights_is_what_rounding_does(lr: float, std: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = std * torch.randn(400_000, generator=generator)
    moved = weights + lr * torch.randn(400_000, generator=generator).sign()
    measured = float((weights.bfloat16() != moved.bfloat16()).float().mean())
    assert changed_share(lr, std) == pytest.approx(measured, rel=0.03, abs=1e-3)


def test_the_whole_model_is_sent_without_adapters() -> None:
    assert sync_bytes(planned_job()) == (SIZE, "the whole model")


TEXT, TOWER = 2 * 3_085_938_688, 2 * 668_684_288
"""Bytes in bfloat16 of the two parts of Qwen2.5-VL-3B, which has 3,754,622,976 parameters."""


@pytest.mark.parametrize(
    ("setting", "size", "what"),
    [
        (None, TEXT, "the text model; the frozen vision tower has 1.25 GiB"),
        ("frozen", TEXT, "the text model; the frozen vision tower has 1.25 GiB"),
        ("trained", TEXT + TOWER, "the whole model"),
        ("none", TEXT, "the whole model"),
    ],
    ids=["by default", "frozen", "trained", "not loaded"],
)
def test_engines_keep_a_frozen_vision_tower(setting: str | None, size: int, what: str) -> None:
    model = with_vision_tower(architecture(PUBLISHED), setting)
    trainer = {} if setting is None else {"vision_tower": setting}
    written = planned_job(trainer=trainer, engine={"type": "sglang"})
    job = replace(written, spec=resolved(written.spec, model), model=model)
    assert sync_bytes(job) == (size, what)
