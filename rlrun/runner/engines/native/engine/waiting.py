"""The groups that wait, and the prompts that lie in the cache for samples that run or wait.

A prompt is put into the cache when the first sample of its group starts, and stays until none of them runs or
waits; one that no sample runs on may be dropped earlier, and is computed anew.
"""

from collections import deque
from collections.abc import Callable, Sequence

from rlrun.runner.engines.native.engine.requests import Group, Job
from rlrun.runner.engines.native.engine.rows import Rows
from rlrun.runner.engines.native.model.cache import BlockPool, blocks_for


class Queue:
    """Groups in the order in which their samples start."""

    def __init__(self, pool: BlockPool, rows: Rows) -> None:
        """`pool` and `rows` have what a prompt takes: blocks, and a seat for their numbers."""
        self._pool = pool
        self._rows = rows
        self._groups: deque[Group] = deque()

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def first(self) -> Group:
        """Whose samples start next."""
        return self._groups[0]

    @property
    def holds_cache(self) -> bool:
        """The prompt of a waiting sample is in the cache."""
        return any(group.seat is not None for group in self._groups)

    def add(self, groups: Sequence[Group]) -> None:
        """To the end, in order."""
        self._groups.extend(groups)

    def put_back(self, groups: Sequence[Group]) -> None:
        """To the front, in order."""
        self._groups.extendleft(reversed(groups))

    def pop(self) -> None:
        """Take the first group off: all of its samples have started."""
        self._groups.popleft()

    def take_out(self, chosen: Callable[[Job], bool]) -> list[Job]:
        """Remove jobs, and the groups that wait for nothing else."""
        jobs = [job for group in self._groups for job in group.waiting if chosen(job)]
        for group in self._groups:
            group.waiting = [job for job in group.waiting if not chosen(job)]
            self.release(group)
        self._groups = deque(group for group in self._groups if group.waiting)
        return jobs

    def room_for(self, group: Group) -> int:
        """How many samples of a group can start now: each needs a row, and one free block for itself."""
        rows = self._rows.capacity - self._rows.count
        fresh = group.seat is None
        if fresh and not self._rows.free_prefix_seats:
            return 0
        need = blocks_for(len(group.prompt)) if fresh else 0
        spare = self._pool.free - need - self._rows.count
        if self._rows.count == 0 and self._pool.free > need:
            spare = max(spare, 1)
        return max(0, min(rows, spare, len(group.waiting)))

    def seat(self, group: Group) -> None:
        """Give a group's prompt its place in the cache."""
        group.blocks = self._pool.take(blocks_for(len(group.prompt)))
        group.seat = self._rows.take_prefix_seat(group.blocks)

    def release(self, group: Group) -> None:
        """Free a group's prompt unless a sample runs or waits."""
        if not group.waiting:
            self._drop(group)

    def drop_idle(self) -> bool:
        """Free the prompts of groups that have no sample running; False when there are none."""
        idle = [group for group in self._groups if group.seat is not None and not group.running]
        for group in idle:
            self._drop(group)
        return bool(idle)

    def renew(self) -> None:
        """Have the prompts of waiting samples computed again when these start: the weights have changed.

        Samples that run keep the prompt that they began with.
        """
        renewed: deque[Group] = deque()
        for group in self._groups:
            if group.seat is not None:
                waiting, group.waiting = group.waiting, []
                self._drop(group)
                group.logits = None
                waiting[0].cached_tokens = 0
                renewed.append(Group(group.prompt, waiting))
            else:
                renewed.append(group)
        self._groups = renewed

    def _drop(self, group: Group) -> None:
        """Free a prompt's blocks once no running sample uses them."""
        if group.seat is not None and not group.running:
            self._pool.give_back(group.blocks)
            self._rows.free_prefix_seat(group.seat)
            group.seat, group.logits = None, None
