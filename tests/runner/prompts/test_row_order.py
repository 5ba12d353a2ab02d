"""Rows that the data source chooses: a resumed run gets the prompts that it would have had."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Choice, Group, Row
from rlrun.runner.prompts.dataset import EncodedPrompt, PromptStream
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.prompt_feed import PromptFeed
from rlrun.specs.sections.data import DataSpec
from tests.runner.loop_fakes import prompt, sample


class Counting:
    """Chooses row n, where n counts its choices and observed groups. Every third row is broken."""

    def __init__(self) -> None:
        self.choices, self.observed = 0, 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Row:
        if index % 3 == 2:
            raise ValueError(f"row {index}: torn")
        return Row(str(index), "w")

    def choose(self, samples: int) -> Choice:
        self.choices += 1
        return Choice(self.choices + 10 * self.observed, 1 + self.observed % samples)

    def observe(self, group: Group) -> None:
        self.observed += 1

    def metrics(self) -> Mapping[str, float]:
        return {"seen": self.observed}

    def state(self) -> Mapping[str, Any]:
        return {"choices": self.choices, "observed": self.observed}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.choices, self.observed = state["choices"], state["observed"]


def stream(source: Any = None) -> PromptStream:
    def encode(row: Row) -> EncodedPrompt:
        return EncodedPrompt(np.ones(1, dtype=np.int32))

    spec = DataSpec.model_validate({"type": "counting", "max_bad_share": 1})
    return PromptStream(source or Counting(), encode, spec, 4, 1, samples=4)


def feed_of(prompts: PromptStream) -> PromptFeed:
    return PromptFeed(Prefetcher(lambda: prompts.take(2), prompts.state, prompts.restore, prompts.steering))


async def take(feed: PromptFeed, count: int) -> list[tuple[int, str, int | None]]:
    taken = [await feed.take() for _ in range(count)]
    return [(one.index, one.row.id, one.samples) for one in taken]


def observe(prompts: PromptStream) -> None:
    assert prompts.steering is not None
    prompts.steering.observe(Group(prompt(0), [sample()]))


async def test_a_choice_knows_all_results_before_it() -> None:
    prompts = stream()
    feed = feed_of(prompts)
    assert await take(feed, 2) == [(0, "1", 1), (1, "3", 1)]
    observe(prompts)
    await asyncio.sleep(0)
    assert await take(feed, 2) == [(2, "15", 2), (3, "16", 2)]


@pytest.mark.parametrize("finished", [(), (0,), (0, 1), (1, 2), (0, 1, 2), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("resumes", [1, 2])
async def test_a_resumed_run_gets_the_same_prompts(finished: tuple[int, ...], resumes: int) -> None:
    prompts = stream()
    feed = feed_of(prompts)
    begun = await take(feed, 2)
    observe(prompts)
    begun += await take(feed, 2)
    for index in finished:
        feed.finish(index)
    state = json.loads(json.dumps(feed.state()))
    for _ in range(resumes):
        again = stream()
        resumed = feed_of(again)
        await resumed.restore(state)
        state = json.loads(json.dumps(resumed.state()))
    unfinished = [one for one in begun if one[0] not in finished]
    assert await take(resumed, len(unfinished)) == unfinished
    for one in unfinished:
        resumed.finish(one[0])
        feed.finish(one[0])
    for left, right in ((prompts, again), (prompts, again)):
        assert await take(feed, 4) == await take(resumed, 4)
        observe(left)
        observe(right)


def test_a_stream_returns_to_its_start() -> None:
    prompts = stream()
    start = prompts.state()
    first = [one.row.id for one in prompts.take(4)]
    observe(prompts)
    prompts.restore(start)
    assert [one.row.id for one in prompts.take(4)] == first


def test_a_checkpoint_of_the_other_kind_is_refused() -> None:
    class Plain:
        __len__, __getitem__ = Counting.__len__, Counting.__getitem__

    with pytest.raises(ValueError, match="made with rows in epochs"):
        stream().restore(stream(Plain()).state())
    with pytest.raises(ValueError, match="made with a data source that chooses its rows"):
        stream(Plain()).restore(stream().state())


@pytest.mark.parametrize("choice", [Choice(1000, 1), Choice(-1, 1), Choice(0, 0), Choice(0, 5)])
def test_impossible_choices_are_refused(choice: Choice) -> None:
    source = Counting()
    source.choose = lambda samples: choice  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"Counting.choose returned Choice.*it has 1000 rows"):
        stream(source).take(1)
