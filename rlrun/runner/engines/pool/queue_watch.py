"""Measures how many samples wait because the KV caches of SGLang servers are full.

    twice a second: every engine ──/v1/loads──▶ EngineLoad ──▶ counts ──▶ rollout/waiting_for_cache

A sample that waits does not count as retracted: the server did not start it yet.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.engines.client.control import EngineLoad
from rlrun.runner.engines.pool.engine_slot import EngineSlot

POLL_SECONDS = 0.5
FULL = 0.25
"""The share of a cache in use from which it is why samples wait. SGLang also reserves room for the rest of
the running responses, which the share does not contain: with 1,024 tokens of cache and responses of up to 96,
samples waited at shares from 0.3 on."""


@dataclass(slots=True)
class QueueCounts:
    """Counts samples at the moments when engines were asked."""

    present: int = 0
    """Samples that ran or waited."""
    waiting: int = 0
    """Those that waited for room in a cache."""
    observe: Callable[[int, int], None] = lambda present, waiting: None
    """Called with the same numbers of each answer."""

    def add(self, load: EngineLoad) -> None:
        """Adds what one engine answered. Samples also wait where `max_running` are running, or where many
        prompts arrive at once; those are not counted as waiting.
        """
        present = load.running + load.waiting
        is_full = load.running < load.max_running and load.cache_used >= FULL
        waiting = load.waiting if is_full else 0
        self.present += present
        self.waiting += waiting
        self.observe(present, waiting)

    def take(self) -> dict[str, float]:
        """Returns `rollout/waiting_for_cache` since the last call, if a sample waited."""
        present, waiting = self.present, self.waiting
        self.present = self.waiting = 0
        return {"rollout/waiting_for_cache": waiting / present} if waiting else {}


async def watch_queues(slots: Sequence[EngineSlot], counts: QueueCounts) -> None:
    """Asks all engines twice a second; never returns. An engine that refuses is not asked again."""
    asked = list(slots)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        answers = await asyncio.gather(*map(_load, asked))
        asked = [slot for slot, answer in zip(asked, answers, strict=True) if answer != "refused"]
        for answer in answers:
            if isinstance(answer, EngineLoad):
                counts.add(answer)


async def _load(slot: EngineSlot) -> EngineLoad | str:
    """Returns the load of an engine; "refused" if it does not serve it, "gone" if it is lost."""
    if not slot.up.is_set():
        return "gone"
    try:
        return await slot.client.load()
    except (EngineGone, TimeoutError):
        return "gone"
    except EngineError:
        return "refused"
