"""Continuous batching: decides in each step which samples run, and runs them.

    waiting groups --admit--> prefill (each prompt once) --> rows --decode: a token per row and step--> done
          ^                                                   |      (several where drafts are right)
          '-------- retract (no free block, or a pause) ------'

A Scheduler belongs to one thread. Its decisions depend on the order of submission and on how full the cache
is, never on time: the same groups, added at once to an idle scheduler, give the same tokens and log-probs bit
for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.decode_pass import DecodePass, draw_inputs, plain_pass
from rlrun.runner.engines.native.engine.prefill import (
    TokenScores,
    keep_results,
    run_prompts,
    samples_of,
    token_scores,
)
from rlrun.runner.engines.native.engine.prefix_cache import PrefixCache
from rlrun.runner.engines.native.engine.requests import Group, SampleInProgress
from rlrun.runner.engines.native.engine.rows import Field, RowEntry, Rows
from rlrun.runner.engines.native.engine.sampler import DrawnTokens, Sampler
from rlrun.runner.engines.native.engine.speculation import Speculation
from rlrun.runner.engines.native.engine.stops import Stops
from rlrun.runner.engines.native.engine.waiting import Queue
from rlrun.runner.engines.native.model.batches import DecodeBatch
from rlrun.runner.engines.native.model.cache import BlockPool, OutOfBlocks
from rlrun.runner.engines.native.model.experts import choices
from rlrun.runner.engines.native.model.forward import Model
from rlrun.runner.engines.native.model.image_tower import PromptImages
from rlrun.runner.engines.native.model.layer_weights import ModelWeights

PREFILL_TOKENS = 8192
"""Most prompt tokens in one forward pass; a longer prompt has a pass to itself."""
PREFILL_PROMPTS = 128
"""Most prompts in one forward pass."""


class Scheduler:
    """Runs groups until all their samples are done; calls each sample's `on_done` when it ends."""

    def __init__(
        self, model: Model, pool: BlockPool, rows: Rows, stops: Stops, *, kept: int = 0, draft_tokens: int = 0
    ) -> None:
        """`kept`: how many ended samples keep their cache for a later turn (`prefix_cache`). `draft_tokens`:
        most tokens of a draft; 0: no speculation.
        """
        self.model = model
        self.version = 0
        self._pool = pool
        self._rows = rows
        self._stops = stops
        self._prefixes = PrefixCache(model, pool, rows, kept)
        self._queue = Queue(pool, rows, self._prefixes)
        self._sampler = Sampler(model, stops.tokens)
        self._speculation = Speculation(rows, pool, model.device.type, draft_tokens) if draft_tokens else None

    @property
    def busy(self) -> bool:
        """Whether a sample runs or waits."""
        return bool(self._queue) or self._rows.count > 0

    @property
    def holds_cache(self) -> bool:
        """Whether a running or waiting sample has keys and values in the cache."""
        return self._rows.count > 0 or self._queue.holds_cache

    @property
    def blocks(self) -> int:
        """Number of blocks of the cache, without the spare one."""
        return self._pool.total

    @property
    def capacity(self) -> int:
        """Most samples that run at a time."""
        return self._rows.capacity

    @property
    def state_slots(self) -> int:
        """Number of recurrent states of rows and of kept samples."""
        return self._rows.capacity + self._prefixes.size

    @property
    def running(self) -> int:
        """Number of running samples."""
        return self._rows.count

    def add(self, groups: Sequence[Group]) -> None:
        """Queues groups, in order."""
        if self._speculation and not self.busy:
            # Drafts follow earlier requests' tokens: an idle engine's answers must not depend on its past.
            self._speculation.forget()
        self._queue.add(groups)

    @torch.inference_mode()
    def step(self) -> None:
        """Starts the waiting samples that there is room for, then decodes one token of every running
        sample, or several where its draft is right.
        """
        self._admit()
        if self._rows.count:
            self._decode()

    def score(
        self, prompts: Sequence[NDArray[np.int32]], images: Sequence[PromptImages] = (), num_top: int = 0
    ) -> list[TokenScores]:
        """Returns the scores of each prompt's tokens, without affecting running samples."""
        return token_scores(self.model, prompts, images, num_top)

    def set_weights(self, weights: ModelWeights, version: int) -> None:
        """Replaces the weights, and notes for every running sample where the new version begins.

        Samples that start later use nothing of the old weights: their prompt's keys and values are computed
        again.
        """
        self.model.replace_weights(weights)
        self._prefixes.clear()
        self._queue.drop_stale_prompts()
        self.version = version
        for row, entry in enumerate(self._rows.entries):
            # The row's cache mixes keys and values of two versions, so no later turn may start from it.
            entry.has_old_weights = True
            generated = len(entry.sample.tokens) + int(self._rows.ints[Field.GENERATED, row])
            entry.sample.starts.append((version, generated))

    def abort(self, chosen: Callable[[SampleInProgress], bool], message: str) -> int:
        """Ends the chosen samples with the tokens they have, and returns how many there were."""
        return self._end_samples(chosen, {"type": "abort", "message": message})

    def fail(self, message: str) -> None:
        """Ends every sample with an error."""
        self._end_samples(lambda sample: True, {"type": "error", "message": message})

    def _end_samples(self, chosen: Callable[[SampleInProgress], bool], finish: dict[str, Any]) -> int:
        running = [row for row, entry in enumerate(self._rows.entries) if chosen(entry.sample)]
        self._finish(dict.fromkeys(running, finish))
        waiting = self._queue.remove_samples(chosen)
        for sample in waiting:
            _end_sample(sample, finish)
        return len(running) + len(waiting)

    def retract_all(self) -> None:
        """Moves every running sample back to the front of the queue, its tokens appended to its prompt."""
        self._retract(range(self._rows.count))
        self._queue.drop_idle()
        self._prefixes.clear()

    def drop_kept_samples(self) -> None:
        """Drops the cache of samples that have ended."""
        self._prefixes.clear()

    # -- admission

    def _admit(self) -> None:
        """Starts waiting samples in order, as long as there is room and their prompts fit into one pass."""
        first = self._rows.count
        groups: list[Group] = []
        tokens = 0
        while self._queue:
            group = self._queue.first
            needs_prefill = group.seat is None
            room = self._queue.make_room(group)
            if not room and not self._rows.count and self._queue.drop_idle():
                continue  # no running sample will free blocks: prompts that wait in the cache make room
            if not room:
                break
            if needs_prefill:
                prefix = self._prefixes.find(group)
                new_tokens = len(group.prompt) - (prefix.length if prefix else 0)
                if groups and (tokens + new_tokens > PREFILL_TOKENS or len(groups) == PREFILL_PROMPTS):
                    break
                self._queue.seat(group, prefix)
                groups.append(group)
                tokens += new_tokens
            self._add_rows(group, room)
            if group.waiting:
                break  # later groups must not overtake: what runs depends on the order of submission only.
            self._queue.pop()
        if self._rows.count > first:
            self._start_rows(first, groups)

    def _add_rows(self, group: Group, count: int) -> None:
        """Adds rows for the next `count` samples of a group."""
        for sample in group.waiting[:count]:
            sample.starts.append((self.version, len(sample.tokens)))
            self._rows.append(RowEntry(sample, group), *self._stops.sets(sample.params, self._rows))
        group.running += count
        group.waiting = group.waiting[count:]

    def _start_rows(self, first: int, groups: list[Group]) -> None:
        """Prefills the prompts of `groups`, and draws the first token of every row from `first` on."""
        entries = self._rows.entries[first:]
        if groups:
            reports = any(
                sample.options.return_routed_experts for entry in entries for sample in samples_of(entry)
            )
            run_prompts(self.model, groups, self._pool.block, reports_experts=reports)
        started = [entry.group for entry in entries]
        for entry in entries:
            if entry.group.experts is not None:
                entry.sample.record_experts(entry.group.experts)
        if self.model.recurrent is not None:
            slots = self._rows.ints[Field.SEAT, first : self._rows.count].tolist()
            self.model.recurrent.store(slots, [group.recurrent for group in started])
        rows = np.arange(first, self._rows.count)
        logits = [group.logits for group in started]
        drawn = self._sampler.first_tokens(draw_inputs(self._rows, first), logits)
        self._finish(self._append_tokens(rows, drawn, np.arange(len(rows))))
        # Only now: a group that still waits keeps its logits for the samples that start in a later step.
        for group in started:
            keep_results(group)

    # -- decoding

    def _decode(self) -> None:
        """Runs the newest token of every row and its draft, and appends the tokens that are drawn."""
        self._make_room()
        rows, padded = self._rows, self.model.padded
        decoded = self._speculation.plan(padded) if self._speculation else None
        decoded = decoded or plain_pass(rows, padded)
        batch = DecodeBatch(decoded.columns, rows.prefix_tables, rows.suffix_tables, self._pool.block)
        reports = any(entry.sample.options.return_routed_experts for entry in rows.entries)
        chosen: list[torch.Tensor] | None = [] if reports else None
        hidden = self.model.decode(batch, chosen)
        drawn = self._sampler.next_tokens(decoded.inputs, hidden[: decoded.size])
        if decoded.has_drafts:
            ended = self._append_drafted(decoded, drawn)
        else:
            ended = self._append_tokens(decoded.first, drawn, decoded.first)
        if chosen:
            self._record_experts(decoded, choices(chosen, self.model.architecture))
        if self._speculation and decoded.has_drafts:
            self._speculation.settle(decoded)
        self._finish(ended)

    def _make_room(self) -> None:
        """Allocates blocks for the rows' newest tokens; if the cache is full, drops kept samples, frees idle
        prompts, then retracts the last rows.
        """
        while True:
            try:
                self._allocate_blocks()
                return
            except OutOfBlocks:
                if not self._prefixes.drop_oldest() and not self._queue.drop_idle():
                    assert self._rows.count > 1, "a single sample always fits: Engine.check made sure"
                    self._rows.entries[-1].sample.retractions += 1
                    self._retract(range(self._rows.count - 1, self._rows.count))

    def _allocate_blocks(self) -> None:
        """Allocates a block for every row whose newest token begins one; raises OutOfBlocks."""
        starting = self._rows.starting_blocks()
        if len(starting):
            self._rows.add_blocks(starting, self._pool.take(len(starting)))

    # -- endings

    def _append_drafted(self, decoded: DecodePass, drawn: DrawnTokens) -> dict[int, dict[str, Any]]:
        """Appends to every row the tokens of its draft that are right, and the one drawn behind them; returns
        why rows ended. A token that ends a row is its last.
        """
        right, rows = decoded.right_tokens(drawn.tokens), np.arange(self._rows.count)
        ended: dict[int, dict[str, Any]] = {}
        for number in range(int(right.max()) + 1):
            rows = rows[right[rows] >= number]
            rows = rows[~np.isin(rows, list(ended))] if ended else rows
            ended |= self._append_tokens(rows, drawn, decoded.first[rows] + number)
        for row in np.flatnonzero(decoded.lengths).tolist():
            sample = self._rows.entries[row].sample
            sample.drafted += int(decoded.lengths[row])
            sample.accepted += self._num_appended(decoded, row) - 1
        return ended

    def _num_appended(self, decoded: DecodePass, row: int) -> int:
        """Returns how many tokens a row has got in a pass."""
        return int(self._rows.ints[Field.GENERATED, row] - decoded.generated[row])

    def _record_experts(self, decoded: DecodePass, experts: NDArray[np.int16]) -> None:
        """Records the experts `[R, layers · K]` of the tokens whose successors were appended."""
        for row, entry in enumerate(self._rows.entries):
            if entry.sample.options.return_routed_experts:
                first = int(decoded.first[row])
                entry.sample.experts.append(experts[first : first + self._num_appended(decoded, row)])

    def _append_tokens(
        self, rows: NDArray[np.int64], drawn: DrawnTokens, indices: NDArray[np.int64]
    ) -> dict[int, dict[str, Any]]:
        """Appends to each of `rows` the drawn token of its index; returns why rows ended."""
        self._rows.record(rows, drawn.tokens[indices], drawn.log_probs[indices])
        if drawn.masks is not None:
            self._rows.record_masks(rows, drawn.masks, indices)
        return self._stops.ended(self._rows, rows)

    def _finish(self, ended: dict[int, dict[str, Any]]) -> None:
        """Removes rows, and ends their samples with the tokens they generated, for the given reasons."""
        if not ended:
            return
        samples = [self._rows.entries[row].sample for row in ended]
        self._free_rows(np.array(list(ended), np.int64), keeps=True)
        for sample, reason in zip(samples, ended.values(), strict=True):
            _end_sample(sample, reason)

    def _free_rows(self, rows: NDArray[np.int64], *, keeps: bool) -> None:
        """Hands rows' tokens to their samples, and frees their seats and, unless they are kept, their
        blocks.
        """
        for row in rows.tolist():
            self._rows.collect(row)
            if not (keeps and self._prefixes.keep(row)):
                self._pool.give_back(self._rows.blocks_of(row))
            group = self._rows.entries[row].group
            group.running -= 1
            self._queue.release(group)
        self._rows.remove(rows)

    def _retract(self, chosen: range) -> None:
        """Moves rows to the front of the queue, as groups whose prompt ends in the sample's tokens."""
        samples = [self._rows.entries[row].sample for row in chosen]
        self._free_rows(np.array(chosen, np.int64), keeps=False)
        groups = [
            Group(np.concatenate([sample.prompt, sample.tokens]), [sample], sample.images)
            for sample in samples
        ]
        self._queue.put_first(groups)


def _end_sample(sample: SampleInProgress, finish: dict[str, Any]) -> None:
    sample.finish = finish
    sample.on_done(sample)
