"""Steps 1 to 4 of the loop with partial rollouts: groups that a step does not use are kept in a buffer.

    buffer ──▶ finished groups, unfinished ones ─▶ engines ─▶ rewards, filters ─▶ P of the finished groups
      ▲                        prompts, while in flight + finished < P ▲                │
      └──────── surplus finished groups, unfinished groups with their tokens ◀── stop ──┘

Unfinished groups remain running tasks whose requests are parked while the weights change
(rlrun.runner.rollouts.request_resumer), so any rollout plugin continues where it was stopped. A checkpoint
holds the finished groups, and the tokens of the unfinished ones; a resumed job sends their prompts again, and
each request finds its tokens.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlrun.plugins.protocols import BufferStrategy
from rlrun.plugins.types import Buffered, Group, Prompt, Sample, VersionSpan
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.contracts.pausable_deadlines import PausableDeadlines
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.records.saved_images import encode_images, find_encoded
from rlrun.runner.records.saved_rollouts import records_to_groups, whole_record
from rlrun.runner.rollouts.deadlines import abort_all_requests
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.prompt_feed import BUFFER
from rlrun.runner.rollouts.request_resumer import ResumingEngines
from rlrun.runner.rollouts.rollout_source import Batch, RolloutSource
from rlrun.specs.sections.rollout import RolloutSpec


class PartialSource(RolloutSource):
    """Generates each batch when it is asked for, and continues unfinished groups with newer weights."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: RolloutContext,
        prompts: Prefetcher[Prompt],
        filters: Filters,
        strategy: BufferStrategy,
    ) -> None:
        """`strategy` chooses which groups of the buffer are continued, and which are used first."""
        self._strategy = strategy
        self._deadlines = PausableDeadlines()
        self._resumer = ResumingEngines(policy.engines, partial(policy.tokenizer.decode_batch, special=True))
        # Parked requests stay in this queue, where evaluations would have to wait behind them.
        pending = PendingRequests(policy.pending.capacity)
        policy = replace(policy, engines=self._resumer, deadlines=self._deadlines, pending=pending)
        super().__init__(spec, policy, prompts, filters)
        self._ready: dict[int, Group] = {}
        """Finished groups by prompt."""
        self._running: dict[int, asyncio.Task[None]] = {}
        """Unfinished groups by prompt."""
        self._restarting: set[int] = set()
        """Prompts of unfinished groups of a checkpoint, which are generated first after a resume."""
        self._failures: list[Exception] = []
        self._group_done = asyncio.Event()
        self._oldest_allowed = 0
        """The oldest version that a group's tokens may have."""

    async def next(self, version: int) -> Batch:
        """Returns the next P groups, from the buffer first."""
        self._oldest_allowed = version - self._spec.max_staleness
        order = self._prune_buffer(version)
        self._tally.submitted += len(order)
        self._deadlines.resume()
        self._resumer.resume(order)
        try:
            await self._collect()
        finally:
            await self._stop()
        return self._take(version)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns the state with the buffer; groups are encoded when it is called."""
        position = super().snapshot()()
        ready, begun = list(self._ready.values()), sorted(self._restarting.union(self._running))
        requests = self._resumer.snapshot()

        def read() -> dict[str, Any]:
            finished = [whole_record(group, sample) for group in ready for sample in group.samples]
            buffer = {"finished": finished, "begun": begun, "requests": requests()}
            return position | {BUFFER: buffer | {"images": encode_images(ready)}}

        return read

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved state, also one of a source without a buffer."""
        await super().restore(state)
        buffer = state.get(BUFFER, {"finished": [], "begun": [], "requests": {}})
        groups = records_to_groups(buffer["finished"], find_encoded(buffer.get("images", {})))
        self._ready = {prompt_index(group): group for group in groups}
        self._feed.hold(self._ready)
        self._restarting = set(buffer["begun"])
        self._resumer.restore(buffer["requests"])

    async def close(self) -> None:
        """Aborts the groups in flight, and stops reading ahead."""
        tasks = list(self._running.values())
        if tasks:
            await abort_all_requests(self._resumer)
        await cancel_all(tasks)
        await super().close()

    def _prune_buffer(self, version: int) -> list[int]:
        """Drops stale groups and those that the strategy leaves out; returns the others in its order."""
        buffered = self._buffered_groups()
        stale = {group.index for group in buffered if self._is_stale(group)}
        usable = {group.index: group for group in buffered if group.index not in stale}
        order = [index for index in self._strategy.order(list(usable.values()), version) if index in usable]
        self._discard(stale, "staleness", "too_old")
        self._discard(set(usable) - set(order), "buffer", "given_up")
        return order

    def _buffered_groups(self) -> list[Buffered]:
        """Returns every group of the buffer, by prompt, as strategies see it."""
        groups = [_as_buffered(group) for group in self._ready.values()]
        for index in self._restarting.union(self._running):
            generations = self._resumer.generations(index)
            versions = [span.version for generation in generations for span in generation.versions]
            num_tokens = sum(len(generation.tokens) for generation in generations)
            groups.append(Buffered(index, False, num_tokens, min(versions, default=-1)))
        return sorted(groups, key=lambda group: group.index)

    def _is_stale(self, group: Buffered) -> bool:
        return group.tokens > 0 and group.oldest_version < self._oldest_allowed

    def _discard(self, indices: set[int], dropper: str, reason: str) -> None:
        for index in indices:
            self._ready.pop(index, None)
            self._restarting.discard(index)
            if (task := self._running.pop(index, None)) is not None:
                task.cancel()
            self._resumer.forget(index)
        self._drop(indices, dropper, reason)

    async def _collect(self) -> None:
        """Runs groups until P are finished, or all attempts are used."""
        batch_size = self._spec.batch_size
        while self._restarting:
            self._start(await self._feed.take())
        while self._failures or len(self._ready) < batch_size:
            if self._failures:
                raise self._failures[0]
            if len(self._ready) + len(self._running) < batch_size and not self._is_exhausted():
                for _ in range(self._spec.oversample):
                    self._start(await self._feed.take())
                    self._tally.submitted += 1
            if not self._running:
                groups = self._tally.accept_partial_batch(list(self._ready.values()), batch_size)
                self._ready = {prompt_index(group): group for group in groups}
                break
            await self._group_done.wait()
            self._group_done.clear()

    def _start(self, prompt: Prompt) -> None:
        # Prompts come in order, so those before this one were started or have been finished.
        self._restarting = {index for index in self._restarting if index > prompt.index}
        self._running[prompt.index] = asyncio.create_task(self._run(prompt))

    async def _run(self, prompt: Prompt) -> None:
        """Produces the group of a prompt, over as many steps as it takes."""
        try:
            group = await self._produce(prompt)
        except Exception as error:
            self._failures.append(error)
            return
        finally:
            self._running.pop(prompt.index, None)
            self._resumer.forget(prompt.index)
            self._group_done.set()
        if group is None:
            return
        if self._is_stale(_as_buffered(group)):  # the first of its turns became too old during this step
            self._drop({prompt.index}, "staleness", "too_old")
        else:
            self._ready[prompt.index] = group

    async def _stop(self) -> None:
        """Parks every request; rewards and tools, which need no engine, continue while the trainer works."""
        await self._resumer.stop()
        self._deadlines.stop()

    def _take(self, version: int) -> Batch:
        """Takes the groups that the strategy puts first out of the buffer."""
        finished = [_as_buffered(group) for _, group in sorted(self._ready.items())]
        order = [index for index in self._strategy.order(finished, version) if index in self._ready]
        chosen = list(dict.fromkeys([*order, *sorted(self._ready)]))[: self._spec.batch_size]
        groups = [self._ready.pop(index) for index in sorted(chosen)]
        for group in groups:
            self._feed.finish(prompt_index(group))
        tally = self._replace_tally(set(self._ready))
        num_buffered = len(self._ready) + len(self._running)
        off_policy = _off_policy_fraction(groups, version)
        if self._spec.mask_off_policy:
            _mask_off_policy(groups, version)

        def measure() -> dict[str, float]:
            metrics = {"rollout/buffer/groups": num_buffered, "rollout/off_policy_frac": off_policy}
            return tally.metrics(version) | metrics

        return Batch(groups, tally.generated_tokens, measure, tally.removed)


def _as_buffered(group: Group) -> Buffered:
    """Returns a finished group as strategies see it."""
    oldest = min((sample.oldest_version for sample in group.samples if sample.versions), default=-1)
    return Buffered(prompt_index(group), True, sum(len(sample.tokens) for sample in group.samples), oldest)


def _mask_off_policy(groups: Sequence[Group], version: int) -> None:
    """Removes the tokens made by versions before `version` from the loss."""
    for sample, span in _older_spans(groups, version):
        sample.loss_mask[span.start : span.end] = 0.0


def _off_policy_fraction(groups: Sequence[Group], version: int) -> float:
    """Returns the fraction of tokens made by versions before `version`."""
    num_older = sum(span.end - span.start for _, span in _older_spans(groups, version))
    return num_older / max(1, sum(len(sample.tokens) for group in groups for sample in group.samples))


def _older_spans(groups: Sequence[Group], version: int) -> Iterator[tuple[Sample, VersionSpan]]:
    """Yields the spans of tokens made by versions before `version`, each with its sample."""
    for group in groups:
        for sample in group.samples:
            for span in sample.versions:
                if span.version < version:
                    yield sample, span
