"""Continuous batching: which samples run, where their cache lies, and what a step does.

    waiting groups --admit--> prefill (each prompt once) --> rows --decode, one token a row a step--> done
                    <-----------------retract (no free block, or pause)-----------'

One thread owns a Scheduler. It decides by the order of submission and by how full the cache is, never by the
clock: the same groups added at once to an idle scheduler give the same tokens and log-probs, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.prompt_scoring import token_log_probs
from rlrun.runner.engines.native.engine.requests import Group, Job
from rlrun.runner.engines.native.engine.rows import Entry, Field, Rows
from rlrun.runner.engines.native.engine.sampler import Drawn, Sampler
from rlrun.runner.engines.native.engine.stops import Stops
from rlrun.runner.engines.native.engine.waiting import Queue
from rlrun.runner.engines.native.model.batches import DECODE_COLUMNS, DecodeBatch, packed_prompts
from rlrun.runner.engines.native.model.cache import BlockPool, OutOfBlocks
from rlrun.runner.engines.native.model.forward import Model
from rlrun.runner.engines.native.model.fused_weights import ModelWeights

PREFILL_TOKENS = 8192
"""Prompt tokens in one pass; a longer prompt goes alone."""
PREFILL_PROMPTS = 128
"""Prompts in one pass."""


class Scheduler:
    """Runs groups to their end. `step` does one round; jobs are told through their `on_done`."""

    def __init__(self, model: Model, pool: BlockPool, rows: Rows, stops: Stops) -> None:
        self.model = model
        self.version = 0
        self._pool = pool
        self._rows = rows
        self._stops = stops
        self._queue = Queue(pool, rows)
        self._device = model.weights.norm.device
        self._sampler = Sampler(model, rows, stops.tokens)

    @property
    def busy(self) -> bool:
        """Something runs or waits."""
        return bool(self._queue) or self._rows.count > 0

    @property
    def holds_cache(self) -> bool:
        """A sample, running or waiting, has keys and values in the cache."""
        return self._rows.count > 0 or self._queue.holds_cache

    @property
    def blocks(self) -> int:
        """Of the cache, the spare one left out."""
        return self._pool.total

    @property
    def running(self) -> int:
        """Samples being decoded."""
        return self._rows.count

    def add(self, groups: Sequence[Group]) -> None:
        """Queue groups, in order."""
        self._queue.add(groups)

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what there is room for, then decode one token of every running sample."""
        self._admit()
        if self._rows.count:
            self._decode()

    def score(self, prompts: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Log-probs `[P - 1]` of each prompt's own tokens; what runs is not touched."""
        return token_log_probs(self.model, prompts)

    def set_weights(self, weights: ModelWeights, version: int) -> None:
        """Replace the weights, and note for every running sample where the new version begins.

        A sample that starts later has nothing of the old ones: neither its prompt's keys and values nor its
        first token.
        """
        self.model.replace_weights(weights)
        self._queue.renew()
        self.version = version
        for row, entry in enumerate(self._rows.entries):
            made = len(entry.job.tokens) + int(self._rows.ints[Field.GENERATED, row])
            entry.job.starts.append((version, made))

    def abort(self, chosen: Callable[[Job], bool], message: str) -> int:
        """End jobs with what they have; returns how many."""
        return self._end_chosen(chosen, {"type": "abort", "message": message})

    def fail(self, message: str) -> None:
        """End every job with an error."""
        self._end_chosen(lambda job: True, {"type": "error", "message": message})

    def _end_chosen(self, chosen: Callable[[Job], bool], finish: dict[str, Any]) -> int:
        running = [row for row, entry in enumerate(self._rows.entries) if chosen(entry.job)]
        self._finish(np.array(running, np.int64), [finish] * len(running))
        waiting = self._queue.take_out(chosen)
        for job in waiting:
            _end(job, finish)
        return len(running) + len(waiting)

    def retract_all(self) -> None:
        """Move every running sample back to the queue's front, with what it made as part of its prompt."""
        self._retract(range(self._rows.count))
        self._queue.drop_idle()

    # -- admission

    def _admit(self) -> None:
        first = self._rows.count
        groups: list[Group] = []
        tokens = 0
        while self._queue:
            group = self._queue.first
            fresh = group.seat is None
            full = tokens + len(group.prompt) > PREFILL_TOKENS or len(groups) == PREFILL_PROMPTS
            if fresh and groups and full:
                break
            taken = self._queue.room_for(group)
            if not taken and not self._rows.count and self._queue.drop_idle():
                continue
            if not taken:
                break
            if fresh:
                self._queue.seat(group)
                groups.append(group)
                tokens += len(group.prompt)
            self._begin(group, taken)
            if group.waiting:
                break
            self._queue.pop()
        if self._rows.count > first:
            self._start(first, groups)

    def _begin(self, group: Group, count: int) -> None:
        for job in group.waiting[:count]:
            job.starts.append((self.version, len(job.tokens)))
            self._rows.append(Entry(job, group), *self._stops.sets(job.params, self._rows))
        group.running += count
        group.waiting = group.waiting[count:]

    def _start(self, first: int, groups: list[Group]) -> None:
        """Prefill `groups` and draw the first token of every row from `first` on."""
        if groups:
            logits = self.model.logits(self._prefill(groups))
            for index, group in enumerate(groups):
                group.logits = logits[index : index + 1]
        started = [entry.group for entry in self._rows.entries[first:]]
        self._advance(first, self._sampler.first_tokens(first, [group.logits for group in started]))
        for group in started:
            group.logits = group.logits.clone() if group.waiting else None

    def _prefill(self, groups: list[Group]) -> torch.Tensor:
        prompts = [group.prompt for group in groups]
        lengths = [len(prompt) for prompt in prompts]
        packed = packed_prompts(prompts, self.model.padded(sum(lengths)), [group.blocks for group in groups])
        return self.model.prefill(torch.from_numpy(packed).to(self._device), lengths)

    # -- decoding

    def _decode(self) -> None:
        while True:
            try:
                self._extend()
                break
            except OutOfBlocks:
                if not self._queue.drop_idle():
                    assert self._rows.count > 1, "a sample alone fits: checked when it was submitted"
                    self._retract(range(self._rows.count - 1, self._rows.count))
        rows = self._rows
        columns = rows.ints[:DECODE_COLUMNS, : self.model.padded(rows.count)]
        hidden = self.model.decode(DecodeBatch(columns, rows.prefix_tables, rows.suffix_tables))
        self._advance(0, self._sampler.next_tokens(hidden[: rows.count]))

    def _extend(self) -> None:
        """A new block for every row whose newest token begins one."""
        starting = self._rows.starting_blocks()
        if len(starting):
            self._rows.add_blocks(starting, self._pool.take(len(starting)))

    # -- endings

    def _advance(self, first: int, drawn: Drawn) -> None:
        """Append a token to every row from `first` on, and end those that are done."""
        self._rows.record(first, drawn.tokens, drawn.log_probs)
        if drawn.masks is not None:
            self._rows.record_masks(first, drawn.masks)
        ended = self._stops.ended(self._rows, first)
        if ended:
            self._finish(np.array(list(ended), np.int64), list(ended.values()))

    def _finish(self, ended: NDArray[np.int64], reasons: list[dict[str, Any]]) -> None:
        """Take rows out and hand their jobs back with what they made."""
        jobs = [self._rows.entries[row].job for row in ended.tolist()]
        self._take_out(ended)
        for job, reason in zip(jobs, reasons, strict=True):
            _end(job, reason)

    def _take_out(self, rows: NDArray[np.int64]) -> None:
        """Collect the tokens of rows and free all they hold."""
        for row in rows.tolist():
            self._rows.collect(row)
            self._pool.give_back(self._rows.blocks_of(row))
            group = self._rows.entries[row].group
            group.running -= 1
            self._queue.release(group)
        self._rows.remove(rows)

    def _retract(self, chosen: range) -> None:
        """Back to the queue's front, as a prompt that ends in what the sample made."""
        jobs = [self._rows.entries[row].job for row in chosen]
        self._take_out(np.array(chosen, np.int64))
        groups = [Group(np.concatenate([job.prompt, job.tokens]), [job]) for job in jobs]
        self._queue.put_back(groups)


def _end(job: Job, finish: dict[str, Any]) -> None:
    job.finish = finish
    job.on_done(job)
