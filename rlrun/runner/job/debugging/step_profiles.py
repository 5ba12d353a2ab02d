"""Profiles the steps that `debug.profile.steps` names.

before the step: every rank records ──▶ after it: profile/step-N/rank-K.trace.json.gz
                 spans of the step   ──▶ profile/step-N/timeline.json.gz, with those traces
"""

import gzip
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.step_clock import CLOCK_MARK, ENGINE_WORK, GroupMoment, Span
from rlrun.runner.host.background import in_background

TIMELINE = "timeline.json.gz"
Event = dict[str, Any]
_Point = tuple[str, float]
"""A lane and a moment."""
_TRAINING = "train policy"
"""The name of the spans in which a rank trains the policy."""
_LANE_PIDS = 1_000_000
"""Process ids of the events of ranks are shifted by multiples of this, so that hosts' ids do not collide."""


class StepProfiles:
    """Records the chosen steps of a run, counted from 1."""

    def __init__(
        self, steps: Collection[int] = (), folder: Path = Path(), trainer: TrainerGroup | None = None
    ) -> None:
        """`folder`: where each step gets a folder of its own."""
        self._steps, self._folder, self._trainer = frozenset(steps), folder, trainer

    @asynccontextmanager
    async def recording(self, step: int) -> AsyncIterator[None]:
        """Makes the ranks record in the block, if the step is one of those."""
        if step not in self._steps or self._trainer is None:
            yield
            return
        await self._trainer.begin_profile()
        yield
        folder = self._step_folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        await self._trainer.end_profile(folder)

    async def write_timeline(
        self,
        step: int,
        spans: Sequence[Span],
        moments: Sequence[GroupMoment] = (),
        ranks_by_prompt: Callable[[], Mapping[int, Collection[int]]] = dict,
    ) -> None:
        """Writes the timeline of the whole job, if the step is one of those.

        `moments`: when each group was generated and scored. `ranks_by_prompt`: returns which ranks trained on
        the group of each prompt.
        """
        if step in self._steps:
            began = time.time() - time.perf_counter()
            groups = [*moments, *moments_of_training(spans, ranks_by_prompt())]
            await in_background(_write, self._step_folder(step), spans, groups, began)

    def _step_folder(self, step: int) -> Path:
        return self._folder / f"step-{step}"


def _write(folder: Path, spans: Sequence[Span], moments: Sequence[GroupMoment], began: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    traces = {}
    for path in folder.glob("rank-*.trace.json.gz"):
        found = re.fullmatch(r"rank-(\d+)\.trace\.json\.gz", path.name)
        if found:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                traces[int(found[1])] = json.load(file)
    with gzip.open(folder / TIMELINE, "wt", encoding="utf-8") as file:
        json.dump(merge_timeline(spans, moments, began, traces), file)


def merge_timeline(
    spans: Sequence[Span],
    moments: Sequence[GroupMoment],
    began: float,
    rank_traces: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns the timeline; times are microseconds since the earliest span.

    `moments`: where each group was, and when. `began`: seconds since 1970 at time 0 of the spans' clock.
    `rank_traces`: torch's trace by rank.

        driver, rewards, engines: spans ─┐
        ranks: torch's traces            ┴─▶ events on one clock: a process per lane, and flows between lanes

    https://ui.perfetto.dev and chrome://tracing open it. A flow is an arrow: each group leads from its
    engines to the rewards, and from there to the ranks that train on it; weights lead from the driver to the
    engines.
    """
    first = min((span.start for span in spans), default=0.0)
    arrows = [*_ways_of_groups(moments), *_ways_of_weights(spans)]
    events = [*_lanes(spans, first), *_flows(spans, arrows, first)]
    for rank, trace in sorted(rank_traces.items()):
        events += _of_rank(rank, trace["traceEvents"], began + first)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(spans: Sequence[Span], first: float) -> Iterator[Event]:
    for pid, lane in enumerate(_names(spans)):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": lane}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for span in spans:
            if span.lane == lane:
                yield _at(span.start, first, pid) | {
                    "ph": "X", "name": span.name, "cat": "rlrun", "dur": 1e6 * (span.end - span.start),
                }  # fmt: skip


def moments_of_training(
    spans: Iterable[Span], ranks_by_prompt: Mapping[int, Collection[int]]
) -> list[GroupMoment]:
    """Returns when the training on each group began, on every rank that trains on it."""
    begins: dict[str, float] = {}
    for span in spans:
        if span.name == _TRAINING:
            begins[span.lane] = min(span.start, begins.get(span.lane, span.start))
    return [
        GroupMoment(lane, prompt, begins[lane])
        for prompt, ranks in ranks_by_prompt.items()
        for lane in (f"rank {rank}" for rank in ranks)
        if lane in begins
    ]


def _ways_of_groups(moments: Iterable[GroupMoment]) -> Iterator[tuple[str, _Point, _Point]]:
    """Yields arrows from the engines to the rewards and on to the ranks; without rewards, to the ranks."""
    stops: defaultdict[int, dict[str, list[_Point]]] = defaultdict(lambda: defaultdict(list))
    for lane, prompt, moment in moments:
        stops[prompt][lane.split()[0]].append((lane, moment))
    for prompt, points in sorted(stops.items()):
        way = [points[kind] for kind in ("engine", "rewards", "rank") if points[kind]]
        for sources, targets in pairwise(way):
            yield from ((f"group {prompt}", *ends) for ends in product(sources, targets))


def _ways_of_weights(spans: Sequence[Span]) -> Iterator[tuple[str, _Point, _Point]]:
    """Yields arrows from each update to what every engine does next."""
    updates = [span for span in spans if span[:2] == ("driver", "weight_sync")]
    for engine in sorted({span.lane for span in spans if span.name == ENGINE_WORK}):
        for update in updates:
            later = [span.start for span in spans if span.lane == engine and span.start >= update.end]
            if later:
                yield "weights", (update.lane, update.end), (engine, min(later))


def _flows(
    spans: Sequence[Span], arrows: Iterable[tuple[str, _Point, _Point]], first: float
) -> Iterator[Event]:
    pids = {lane: pid for pid, lane in enumerate(_names(spans))}
    for number, (name, (source, start), (target, end)) in enumerate(arrows):
        if source in pids and target in pids:
            flow = {"name": name, "cat": "flow", "id": number}
            yield _at(start, first, pids[source]) | {"ph": "s"} | flow
            yield _at(end, first, pids[target]) | {"ph": "f", "bp": "e"} | flow


def _at(moment: float, first: float, pid: int) -> Event:
    return {"pid": pid, "tid": 0, "ts": 1e6 * (moment - first)}


def _names(spans: Iterable[Span]) -> list[str]:
    """Returns the lanes: the driver first, then rewards, engines and ranks, each in the order of numbers."""
    order = {"driver": 0, "rewards": 1, "rank": 3}
    numbered = {span.lane: (order.get(span.lane.split()[0], 2), span.lane) for span in spans}
    return sorted(numbered, key=lambda lane: (numbered[lane][0], len(lane), lane))


def _of_rank(rank: int, events: Sequence[Event], zero: float) -> Iterator[Event]:
    """Yields the events of a rank's trace, moved to the common clock by the mark in them."""
    mark = next(event for event in events if str(event.get("name", "")).startswith(CLOCK_MARK))
    marked_at = int(mark["name"].removeprefix(CLOCK_MARK)) / 1e3  # microseconds since 1970
    shift = marked_at - mark["ts"] - 1e6 * zero
    pids = {str(event["pid"]): number for number, event in enumerate(events) if "pid" in event}
    own = {pid: _LANE_PIDS * (rank + 1) + number for number, pid in enumerate(pids)}
    for event in events:
        moved = event | ({"ts": event["ts"] + shift} if "ts" in event else {})
        if "pid" in event:
            moved["pid"] = own[str(event["pid"])]
        if "id" in event:
            moved["id"] = f"rank {rank}: {event['id']}"
        if event.get("name") == "process_name":
            moved["args"] = {"name": f"rank {rank}, torch: {event['args']['name']}"}
        yield moved
