"""Steps 1 to 4 of the loop with partial rollouts: what a step does not need goes into a buffer, whole.

    buffer ──▶ finished groups, unfinished ones ─▶ engines ─▶ rewards, filters ─▶ P of the finished
      ▲                        prompts, while in flight + finished < P ▲                │
      └──────────── finished ones too many, unfinished ones with their tokens ◀── stop ─┘

Unfinished groups are the tasks that run them: their requests are parked while the weights change
(rlrun.runner.rollouts.request_resumer), so that every kind of rollout continues where it was stopped. A
checkpoint holds the finished groups, and the tokens of the others; a resumed job sends their prompts again,
and each request finds its tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlrun.plugins.protocols import BufferStrategy
from rlrun.plugins.types import Buffered, Group, Prompt
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.pausable_deadlines import PausableDeadlines
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.records.saved_rollouts import groups_of_records, whole_record
from rlrun.runner.rollouts.deadlines import abort_all
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.prompt_feed import BUFFER, FILTERS, PromptFeed
from rlrun.runner.rollouts.request_resumer import ResumingEngines
from rlrun.runner.rollouts.synchronous import Batch
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.sections.rollout import RolloutSpec


class PartialSource:
    """Batches of groups, of which some were begun by older weights."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: RolloutContext,
        prompts: Prefetcher[Prompt],
        filters: Filters,
        strategy: BufferStrategy,
    ) -> None:
        """`prompts` as for RolloutSource."""
        self._spec = spec
        self._strategy = strategy
        self._patience = PausableDeadlines()
        self._engines = ResumingEngines(policy.engines, partial(policy.tokenizer.decode_batch, special=True))
        line = PendingRequests(
            policy.pending.capacity
        )  # its own: evaluations do not queue behind parked requests
        policy = replace(policy, engines=self._engines, deadlines=self._patience, pending=line)
        self._answers = GroupProducer(spec, policy, filters)
        self._filters = filters
        self._feed = PromptFeed(prompts)
        self._ready: dict[int, Group] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        """Prompts to begin with after a resume: those that had been begun before it."""
        self._failures: list[Exception] = []
        self._oldest = 0
        """The oldest weights that a group may be of."""
        self._tally = Tally()
        self._never = asyncio.Event()

    async def next(self, version: int) -> Batch:
        """The next P groups, from the buffer first. JobError when filters leave too few."""
        self._oldest = version - self._spec.max_staleness
        order = self._look_through(version)
        self._tally.submitted += len(order)
        self._patience.resume()
        self._engines.resume(order)
        try:
            await self._collect()
        finally:
            await self._stop()
        return self._take(version)

    def state(self) -> dict[str, Any]:
        """The place in the data, what filters remember, and the buffer."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later: groups and tokens are not encoded before."""
        place = self._feed.state() | {FILTERS: self._filters.state()}
        ready, begun = list(self._ready.values()), sorted(self._again.union(self._running))
        requests = self._engines.snapshot()

        def read() -> dict[str, Any]:
            finished = [whole_record(group, one) for group in ready for one in group.samples]
            return place | {BUFFER: {"finished": finished, "begun": begun, "requests": requests()}}

        return read

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place, also one that a source without a buffer saved."""
        await self._feed.restore(state)
        self._filters.restore(state.get(FILTERS, {}))
        buffer = state.get(BUFFER, {"finished": [], "begun": [], "requests": {}})
        self._ready = {prompt_index(group): group for group in groups_of_records(buffer["finished"])}
        self._feed.hold(self._ready)
        self._again = set(buffer["begun"])
        self._engines.restore(buffer["requests"])

    async def close(self) -> None:
        """End what is being generated, and stop reading ahead."""
        tasks = list(self._running.values())
        if tasks:
            await abort_all(self._engines)
        await cancel_all(tasks)
        await self._feed.close()

    def _look_through(self, version: int) -> list[int]:
        """What goes on, in the strategy's order; what is too old, or left out by it, is given up."""
        buffered = self._buffered()
        stale = {one.index for one in buffered if self._is_stale(one)}
        fit = {one.index: one for one in buffered if one.index not in stale}
        order = [index for index in self._strategy.order(list(fit.values()), version) if index in fit]
        left_out = set(fit) - set(order)
        self._tally.drop_waiting(stale, "staleness", "too_old")
        self._tally.drop_waiting(left_out, "buffer", "given_up")
        for index in stale | left_out:
            self._give_up(index)
        return order

    def _buffered(self) -> list[Buffered]:
        """Every group of the buffer, by prompt."""
        found = [_finished(group) for group in self._ready.values()]
        for index in self._again.union(self._running):
            made = self._engines.made(index)
            versions = [span.version for one in made for span in one.versions]
            found.append(
                Buffered(index, False, sum(len(one.tokens) for one in made), min(versions, default=-1))
            )
        return sorted(found, key=lambda one: one.index)

    def _is_stale(self, one: Buffered) -> bool:
        return one.tokens > 0 and one.oldest_version < self._oldest

    def _give_up(self, index: int) -> None:
        self._ready.pop(index, None)
        self._again.discard(index)
        if (task := self._running.pop(index, None)) is not None:
            task.cancel()
        self._engines.forget(index)
        self._feed.finish(index)

    async def _collect(self) -> None:
        """Run groups until P are finished, or no more may be tried."""
        wanted = self._spec.batch_size
        while self._again:
            self._begin(await self._feed.take())
        while self._failures or len(self._ready) < wanted:
            if self._failures:
                raise self._failures[0]
            if len(self._ready) + len(self._running) < wanted and self._may_try():
                for _ in range(self._spec.oversample or wanted):
                    self._begin(await self._feed.take())
                    self._tally.submitted += 1
            if not self._running:
                groups = self._tally.make_do(list(self._ready.values()), wanted)
                self._ready = {prompt_index(group): group for group in groups}
                break
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)

    def _may_try(self) -> bool:
        return self._tally.submitted < self._spec.max_attempts * self._spec.batch_size

    def _begin(self, prompt: Prompt) -> None:
        self._again = {index for index in self._again if index > prompt.index}  # prompts come in order
        self._running[prompt.index] = asyncio.create_task(self._run(prompt))

    async def _run(self, prompt: Prompt) -> None:
        """One prompt, from question to verdict, over as many steps as it takes."""
        try:
            group = await self._answers.one(prompt, lambda: self._tally, self._never)
        except Exception as error:
            self._failures.append(error)
            return
        finally:
            self._running.pop(prompt.index, None)
            self._engines.forget(prompt.index)
        if group is not None and self._is_stale(_finished(group)):  # of several turns
            self._tally.drop_waiting({prompt.index}, "staleness", "too_old")
            group = None
        if group is None:
            self._feed.finish(prompt.index)
        else:
            self._ready[prompt.index] = group

    async def _stop(self) -> None:
        """Park every request; rewards and tools that need no engine go on beside the trainer."""
        await self._engines.stop()
        self._patience.stop()

    def _take(self, version: int) -> Batch:
        """The groups that the strategy puts first leave the buffer."""
        finished = [_finished(group) for _, group in sorted(self._ready.items())]
        order = [index for index in self._strategy.order(finished, version) if index in self._ready]
        chosen = list(dict.fromkeys([*order, *sorted(self._ready)]))[: self._spec.batch_size]
        groups = [self._ready.pop(index) for index in sorted(chosen)]
        for group in groups:
            self._feed.finish(prompt_index(group))
        tally, self._tally = self._tally, self._tally.split(set(self._ready))
        waiting = len(self._ready) + len(self._running)
        off_policy = _off_policy(groups, version, mask=self._spec.mask_off_policy)

        def measure() -> dict[str, float]:
            own = {"rollout/buffer/groups": waiting, "rollout/off_policy_frac": off_policy}
            return tally.metrics(version) | own

        return Batch(groups, tally.generated_tokens, measure)


def _finished(group: Group) -> Buffered:
    oldest = min((one.oldest_version for one in group.samples if one.versions), default=-1)
    return Buffered(prompt_index(group), True, sum(len(one.tokens) for one in group.samples), oldest)


def _off_policy(groups: Sequence[Group], version: int, *, mask: bool) -> float:
    """Share of the tokens that older weights than the trainer's made; `mask`: they are not trained on."""
    samples = [sample for group in groups for sample in group.samples]
    older = 0
    for sample in samples:
        for span in sample.versions:
            if span.version < version:
                older += span.end - span.start
                if mask:
                    sample.loss_mask[span.start : span.end] = 0.0
    return older / max(1, sum(len(sample.tokens) for sample in samples))
