"""Chooses the engine of a session: the one whose cache has its tokens, unless it is clearly busier."""

from collections.abc import Sequence

from rlrun.runner.engines.pool.engine_slot import EngineSlot

MAX_EXTRA_LOAD = 8
"""How many more samples than the least busy engine a session's own engine may run and still be chosen:
computing a conversation's cache again costs more than a few more rows in a batch."""
MAX_SESSIONS = 65_536
"""Sessions whose engine is remembered; those that were silent longest are forgotten first."""


class SessionAffinity:
    """Remembers which engine answered each session last.

    A session is called `prompt` or `prompt/execution`: the executions of one prompt share its cached prefix,
    so the first request of an execution goes where the prompt was first sent.
    """

    def __init__(self) -> None:
        self._last: dict[str, EngineSlot] = {}
        """The slot that answered last, by session and by prompt; least recently used first."""

    def choose(self, session: str, slots: Sequence[EngineSlot]) -> EngineSlot:
        """Returns one of these slots for a request of this session; "" is a request without a session."""
        least_busy = min(slots, key=lambda slot: slot.load)
        if not session:
            return least_busy
        prompt = session.partition("/")[0]
        last = self._last.pop(session, None) or self._last.get(prompt, least_busy)
        chosen = last if last in slots and last.load <= least_busy.load + MAX_EXTRA_LOAD else least_busy
        self._last[session] = chosen
        self._last.setdefault(prompt, chosen)
        while len(self._last) > MAX_SESSIONS:
            del self._last[next(iter(self._last))]
        return chosen
