"""A real job, one of whose steps is recorded: torch's trace of the rank, and the timeline of the job."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.contracts.step_clock import CLOCK_MARK, GroupMoment, Span
from rlrun.runner.job.debugging.step_profiles import Event, merge_timeline, moments_of_training
from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
model = { path = "model" }
data = { path = "rows.jsonl" }
rewards = [{ type = "length", max_tokens = 8, buffer = 8 }]
rollout = { batch_size = 2, samples_per_prompt = 2, max_prompt_tokens = 32, max_response_tokens = 8 }
trainer = { steps = 3, dtype = "float32" }
engine = { dtype = "float32" }
cluster = { threads = 1 }
checkpoint = { export_hf = false }
debug = { profile = { steps = [2] } }
"""
SPANS = [
    Span("driver", "rollout", 100.0, 101.0),
    Span("driver", "weight_sync", 103.0, 103.5),
    Span("engine 0", "requests", 100.1, 100.4),
    Span("engine 0", "requests", 100.5, 100.9),
    Span("engine 0", "requests", 103.6, 104.0),
    Span("rewards", "scoring", 100.4, 101.0),
    Span("rank 0", "train policy", 101.0, 103.0),
    Span("rank 1", "train policy", 101.1, 103.0),
]
MOMENTS = [
    GroupMoment("engine 0", 17, 100.4),
    GroupMoment("engine 0", 18, 100.9),
    GroupMoment("rewards", 17, 100.6),
    GroupMoment("rewards", 18, 101.0),
    *moments_of_training(SPANS, {17: [0, 1]}),
]
TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 77, "ts": 0.0, "args": {"name": "python"}},
        {"ph": "X", "name": f"{CLOCK_MARK}{1_000_101 * 10**9}", "pid": 77, "tid": 77, "ts": 5e6, "dur": 1.0},
        {"ph": "X", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 5.5e6, "dur": 3.0},
        {"ph": "s", "name": "ac2g", "id": 1, "pid": 77, "tid": 77, "ts": 5.5e6},
    ]
}


def test_a_step_is_recorded_and_no_other(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.toml").write_text(SPEC)
    lines = run_local(tmp_path / "job.toml", tmp_path / "run").lines
    assert [line["step"] for line in lines] == [1, 2, 3]
    folder = tmp_path / "run" / "profile"
    assert [path.name for path in folder.iterdir()] == ["step-2"]
    with gzip.open(folder / "step-2" / "timeline.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    [training] = [event for event in events if event["name"] == "train policy"]
    assert processes[training["pid"]] == "rank 0"
    products = [
        event for event in events if event.get("cat") == "cpu_op" and "linear" in event["name"].lower()
    ]
    assert products
    middle = sorted(event["ts"] for event in products)[len(products) // 2]
    assert training["ts"] <= middle <= training["ts"] + training["dur"], "both are on one clock"
    assert {"rollout", "train", "weight_sync", "requests"} <= {event["name"] for event in events}
    check_arrows(events, processes)


def check_arrows(events: list[dict[str, Any]], processes: dict[int, str]) -> None:
    """Asserts that each group leads from engine to rewards to rank, between spans that enclose its ends."""
    with_prompts = [event for event in events if event.get("cat") == "flow" and "group" in event["name"]]
    assert {event["name"] for event in with_prompts} == {"group 2", "group 3"}, "the prompts of step 2"
    for group in ("group 2", "group 3"):
        lanes = [(event["ph"], processes[event["pid"]]) for event in with_prompts if event["name"] == group]
        assert lanes == [("s", "engine 0"), ("f", "rewards"), ("s", "rewards"), ("f", "rank 0")]
    for event in with_prompts:
        own = [span for span in events if span.get("cat") == "rlrun" and span["pid"] == event["pid"]]
        assert any(span["ts"] <= event["ts"] <= span["ts"] + span["dur"] for span in own), event


@pytest.fixture
def events() -> list[Event]:
    timeline = merge_timeline(SPANS, MOMENTS, 1_000_000.0, {0: TRACE, 1: TRACE})
    found: list[Event] = timeline["traceEvents"]
    return found


def test_every_lane_is_a_process(events: list[Event]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    lanes = ["driver", "rewards", "engine 0", "rank 0", "rank 1"]
    lanes += ["rank 0, torch: python", "rank 1, torch: python"]
    assert [names[pid] for pid in sorted(names)] == lanes
    assert all(event["pid"] in names for event in events)


def test_operators_are_on_the_clock_of_the_spans(events: list[Event]) -> None:
    """The mark was made a second after the first span began; the product ran half a second later."""
    training = next(event for event in events if event["name"] == "train policy")
    assert (training["ts"], training["dur"]) == (1e6, 2e6)
    products = [event["ts"] for event in events if event["name"] == "aten::mm"]
    assert products == [pytest.approx(1.5e6)] * 2


def arrows(events: list[Event]) -> list[tuple[str, str, float, str, float]]:
    """Returns name, source, time in seconds, target and time of each arrow."""
    lanes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    flows = [event for event in events if event.get("cat") == "flow"]
    starts = {event["id"]: event for event in flows if event["ph"] == "s"}
    ends = {event["id"]: event for event in flows if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    return [
        (start["name"], lanes[start["pid"]], round(start["ts"] / 1e6, 3), lanes[end["pid"]],
         round(end["ts"] / 1e6, 3))
        for start, end in ((starts[number], ends[number]) for number in starts)
    ]  # fmt: skip


def test_groups_flow_from_engine_to_rewards_to_ranks_and_weights_to_the_engines(events: list[Event]) -> None:
    assert arrows(events) == [
        ("group 17", "engine 0", 0.4, "rewards", 0.6),
        ("group 17", "rewards", 0.6, "rank 0", 1.0),
        ("group 17", "rewards", 0.6, "rank 1", 1.1),
        ("group 18", "engine 0", 0.9, "rewards", 1.0),
        ("weights", "driver", 3.5, "engine 0", 3.6),
    ]


def test_without_rewards_groups_flow_from_the_engines_to_the_ranks() -> None:
    moments = [moment for moment in MOMENTS if moment.lane != "rewards" and moment.prompt == 17]
    found: list[Event] = merge_timeline(SPANS, moments, 1_000_000.0, {})["traceEvents"]
    assert [(source, target) for name, source, _, target, _ in arrows(found) if name == "group 17"] == [
        ("engine 0", "rank 0"),
        ("engine 0", "rank 1"),
    ]


def test_flows_of_two_ranks_stay_apart(events: list[Event]) -> None:
    ids = {event["id"] for event in events if event["name"] == "ac2g"}
    assert ids == {"rank 0: 1", "rank 1: 1"}
