"""Checks of groups and of the weights that made them: whole, once, in order, and fresh enough."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rlrun.plugins.registry import load
from rlrun.plugins.types import Prompt
from rlrun.runner.audit.audited_run import AuditedRun, Batch
from rlrun.runner.audit.stored_sample import StoredSample
from rlrun.runner.audit.violation import NotChecked, Result, Violation
from rlrun.specs.sections.rollout import RolloutSpec

LOSSES = ("rollout/dropped_samples/", "rollout/failed")
"""Metrics of samples that are missing in groups that are trained on."""


def whole_groups(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Each group has all samples of one prompt, each once."""
    if batch.kind == "dropped":
        return
    by_group: dict[tuple[str, int], list[StoredSample]] = {}
    for stored in batch.samples:
        by_group.setdefault((stored.dataset, stored.index), []).append(stored)
    for (_, index), group in by_group.items():
        ids = tuple(stored.id for stored in group)
        rows = {stored.sample.prompt.row.id for stored in group}
        twice = [id for id, count in Counter(ids).items() if count > 1]
        executions = len({stored.sample.execution for stored in group})
        expected = _expected(run, batch, group[0])
        if len(rows) > 1:
            message = f"the samples of prompt {index} are of rows {', '.join(sorted(rows))}"
        elif twice:
            message = f"sample {twice[0]} is there more than once"
        elif batch.kind == "step" and run.needs.pairs and len(group) != 2:
            message = f"prompt {index} has {len(group)} responses, not a pair"
        elif expected is not None and executions != expected:
            message = f"prompt {index} has {executions} executions, not {expected}"
        else:
            message = ""
        yield Violation(message, batch.step, ids, batch.place(group[0])) if message else None


def _expected(run: AuditedRun, batch: Batch, stored: StoredSample) -> int | None:
    """Returns the executions of a group; None where some may be missing for a reason that metrics state."""
    if not run.needs.rollout or (batch.kind == "step" and run.needs.pairs):
        return None
    if batch.kind == "step":
        metrics = run.steps.get(batch.step, {})
        steered = hasattr(load("data", run.spec.data.type), "choose")
        waits = run.spec.rollout.mode == "async" or run.spec.rollout.partial
        lost = any(name.startswith(LOSSES) and value for name, value in metrics.items())
        earlier = waits and any(
            name.startswith(LOSSES) and value for each in run.steps.values() for name, value in each.items()
        )
        if steered or lost or earlier or run.spec.debug.mode == "train":
            return None
    return run.settings(stored).samples


def trained_once(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """No prompt, as a place in the run's order, is trained on in two steps."""
    if batch.kind != "step":
        return
    for stored in batch.samples:
        step = run.trained.setdefault(stored.index, batch.step)
        if step == batch.step:
            yield None
        else:
            message = f"step {step} has trained on prompt {stored.index} already"
            yield batch.violation(stored, message)


def versions(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Each token is of weights that the engines had: of this step's, or as much older as the spec allows."""
    _require_rollouts(run)
    oldest, newest = _allowed(run, batch)
    for stored in batch.samples:
        spans = stored.sample.versions
        if not spans:
            is_generated = stored.tokens > 0 and not stored.sample.is_demonstration
            if is_generated and stored.sample.status.is_finished:
                message = "no version of weights is named for its tokens"
                yield batch.violation(stored, message)
            continue
        covers = spans[0].start == 0 and spans[-1].end == stored.tokens
        covers = covers and all(first.end == second.start for first, second in pairwise(spans))
        numbers = [span.version for span in spans]
        text = ", ".join(f"{span.version} made [{span.start}, {span.end})" for span in spans)
        if not covers:
            message = f"versions {text} do not cover its {stored.tokens} tokens"
        elif numbers != sorted(numbers):
            message = f"versions go back: {text}"
        elif numbers[-1] > newest:
            message = f"version {numbers[-1]} does not exist yet: the trainer has version {newest}"
        elif numbers[0] < oldest:
            message = f"version {numbers[0]} is too old: the spec allows {oldest} to {newest}"
        else:
            message = ""
        yield batch.violation(stored, message) if message else None


def _allowed(run: AuditedRun, batch: Batch) -> tuple[int, int]:
    """Returns the oldest and the newest version that tokens of a batch may have."""
    if batch.kind == "eval":  # engines get the weights of a step before its evaluation
        return batch.step, batch.step
    rollout, current = run.spec.rollout, batch.step - 1
    waits = rollout.mode == "async" or rollout.partial
    if batch.kind == "dropped" and waits:  # for example because they were too old
        return 0, batch.step
    allowed, _ = allowed_staleness(rollout)
    return max(0, current - allowed), current


def allowed_staleness(rollout: RolloutSpec) -> tuple[int, str]:
    """Returns how many versions may lie between a sample's weights and the trained ones, and the key that
    limits them.
    """
    if rollout.mode == "async" or rollout.partial:
        return rollout.max_staleness, "rollout.max_staleness"
    return rollout.weight_update_interval - 1, "rollout.weight_update_interval"


def data_order(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Each prompt is the one that seed and data put at its place."""
    for stored, prompt in _repeated(run, batch):
        own, row = stored.sample.prompt.row, prompt.row
        if own.id == row.id and _same(own.prompt, row.prompt):
            yield None
        else:
            message = (
                f"it answers row {own.id}, and place {stored.index} of seed {run.spec.seed} is row {row.id}"
            )
            yield batch.violation(stored, message)


def labels(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Each sample was scored against the label of its row."""
    for stored, prompt in _repeated(run, batch):
        own, row = stored.sample.prompt.row, prompt.row
        if own.id != row.id:
            continue
        message = f"its label is {own.label!r}, and row {row.id} has {row.label!r}"
        same = _same(own.label, row.label)
        yield None if same else batch.violation(stored, message)


def rendered(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The tokens of each prompt are the row as the template renders it."""
    known = [stored for stored in batch.samples if stored.has_prompt]
    if not known:
        if batch.samples:
            raise NotChecked("prompts have no stored tokens (debug.save_rollouts stores them)")
        return
    for stored, prompt in _repeated(run, batch):
        own = stored.sample.prompt
        if not stored.has_prompt or own.row.id != prompt.row.id:
            continue
        if run.needs.rollout and run.rollout_function(stored).type not in ("single_turn", "multi_turn_tools"):
            raise NotChecked("the rollout makes prompts of its own")
        if np.array_equal(own.tokens, prompt.tokens):
            yield None
        else:
            message = (
                f"its prompt has {len(own.tokens)} tokens, and its row renders to {len(prompt.tokens)} others"
            )
            yield batch.violation(stored, message)


def _repeated(run: AuditedRun, batch: Batch) -> Iterator[tuple[StoredSample, Prompt]]:
    """Yields each sample with the prompt that the data has at its place."""
    if run.changed_data:
        raise NotChecked(f"the files of {', '.join(run.changed_data)} are not those of the launch")
    if run.spec.debug.mode == "train":
        raise NotChecked("the samples are those of another run (debug.rollouts)")
    last: dict[str, int] = {}
    for stored in batch.samples:
        last[stored.dataset] = max(last.get(stored.dataset, 0), stored.index)
    prompts = {dataset: run.prompts(dataset, index) for dataset, index in last.items()}
    for stored in batch.samples:
        if (prompt := prompts[stored.dataset].get(stored.index)) is not None:
            yield stored, prompt


def _same(stored: object, own: object) -> bool:
    """Compares a value that JSON has stored with one of a row."""
    return stored == own or stored == json.loads(json.dumps(own, default=str))


def _require_rollouts(run: AuditedRun) -> None:
    if not run.needs.rollout:
        raise NotChecked("the run generates nothing")
    if run.spec.debug.mode is not None:
        raise NotChecked(f"debug.mode is {run.spec.debug.mode!r}: the weights do not change")
