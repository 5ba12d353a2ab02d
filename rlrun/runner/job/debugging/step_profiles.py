"""Profiles the steps that `debug.profile.steps` names.

before the step: every rank records ──▶ after it: profile/step-N/rank-K.trace.json.gz
                 spans of the step   ──▶ profile/step-N/timeline.json.gz, with those traces
"""

import gzip
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.step_clock import GroupMoment, Span
from rlrun.runner.host.background import in_background
from rlrun.runner.job.debugging.merged_timeline import merge_timeline, moments_of_training

TIMELINE = "timeline.json.gz"


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
