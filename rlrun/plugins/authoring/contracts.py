"""The contracts of plugins' results, which the checks of `rlrun.plugins.testing` assert.

Each function raises AssertionError with what is wrong; `name` is the plugin's name. A function that takes two
instances of a plugin also asserts that both give the same results.
"""

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from rlrun.plugins.hook_checks import SamplesBefore, advantages_fault
from rlrun.plugins.types import (
    Buffered,
    Choice,
    Drop,
    Group,
    LossInputs,
    LossOutputs,
    Mask,
    PolicyPart,
    Prompt,
    Row,
    Sample,
    Status,
    VersionSpan,
)
from rlrun.specs.problems.docstrings import field_docstrings


def sound_parameters(name: str, model: type[BaseModel], params: Mapping[str, Any]) -> None:
    """Asserts that parameters are equal after pickling, and that each parameter has a docstring."""
    checked = model.model_validate(dict(params))
    assert pickle.loads(pickle.dumps(checked)) == checked, f"{name}'s parameters change when they are pickled"
    undocumented = model.model_fields.keys() - field_docstrings(model).keys()
    assert not undocumented, f"{name}'s parameters {sorted(undocumented)} have no docstring"


def same_scores(name: str, first: Any, second: Any, samples: Sequence[Sample]) -> list[Any]:
    """Asserts that a reward gives finite numbers, or tables of them, and does not change the samples.

    Returns the scores.
    """
    before = pickle.dumps(list(samples))
    scores = asyncio.run(_scores(first, samples))
    assert pickle.dumps(list(samples)) == before, f"{name} changes the sample it scores"
    repeated = asyncio.run(_scores(second, pickle.loads(before)))
    assert len(scores) == len(samples), f"{name} gives {len(scores)} scores for {len(samples)} samples"
    for sample, score, second_score in zip(samples, scores, repeated, strict=True):
        values = list(score.values()) if isinstance(score, Mapping) else [score]
        numbers = [value for value in values if not (isinstance(score, Mapping) and isinstance(value, str))]
        finite = all(isinstance(value, int | float) and np.isfinite(value) for value in numbers)
        assert numbers and finite, f"{name} scores {sample.text!r} as {score!r}, not a finite number"
        assert score == second_score, f"{name} scores {sample.text!r} differently the second time"
    return scores


async def _scores(reward: Any, samples: Sequence[Sample]) -> list[Any]:
    """Returns the scores of a reward with `score` or `score_group`, either of which may be asynchronous."""
    grouped = hasattr(reward, "score_group")
    calls = [reward.score_group(samples)] if grouped else [reward.score(sample) for sample in samples]
    results = [await call if inspect.isawaitable(call) else call for call in calls]
    return list(results[0]) if grouped else results


def same_verdicts(name: str, make: Callable[[], Any], groups: Sequence[Group]) -> list[Drop | Mask | None]:
    """Asserts that a filter gives None, or a verdict with a reason on existing samples, and does not change
    groups. A filter with state must continue from its restored state. `make` constructs the filter.

    Returns the verdicts.
    """
    first, second = make(), make()
    verdicts: list[Drop | Mask | None] = []
    for group in groups:
        before = pickle.dumps(group)
        if hasattr(second, "state"):
            second = _restored(name, make(), second.state())
        verdict = first(group)
        assert pickle.dumps(group) == before, f"{name} changes the group it looks at"
        assert verdict == second(group), f"{name} judges the same group differently the second time"
        assert verdict is None or (isinstance(verdict, Drop | Mask) and verdict.reason), (
            f"{name} returned {verdict!r}"
        )
        judged = verdict and verdict.samples
        assert all(0 <= number < len(group.samples) for number in judged or ()), (
            f"{name} judges samples {judged}, but the group has {len(group.samples)}"
        )
        verdicts.append(verdict)
    return verdicts


def _restored(name: str, fresh: Any, state: Any) -> Any:
    """Returns the fresh filter, restored from the given state."""
    assert json.loads(json.dumps(state)) == state, f"{name}'s state is not JSON"
    fresh.restore(state)
    return fresh


def same_state(name: str, make: Callable[[], Any], groups: Sequence[Group]) -> None:
    """Asserts that an algorithm that remembers something has the same numbers in each step when it continues
    from its state, and that it does not change groups. `make` constructs the algorithm.
    """
    first, second = make(), make()
    before = pickle.dumps(list(groups))
    for _ in range(3):
        second = _restored(name, make(), dict(second.state()))
        first.observe(groups)
        second.observe(groups)
        assert pickle.dumps(list(groups)) == before, f"{name} changes the groups that it observes"
        values = dict(first.step_values())
        assert all(np.isfinite(value) for value in values.values()), f"{name} has the step values {values}"
        assert values == dict(second.step_values()), f"{name} continues differently from its state"


def same_order(name: str, first: Any, second: Any, buffered: Sequence[Buffered]) -> None:
    """Asserts that a buffer returns indices of the given groups, each at most once; none if it is empty."""
    assert list(first.order([], 8)) == [], f"{name} finds groups in an empty buffer"
    order = list(first.order(buffered, 8))
    assert order == list(second.order(buffered, 8)), f"{name} orders the same buffer differently"
    assert len(set(order)) == len(order), f"{name} uses a group twice"
    assert set(order) <= {group.index for group in buffered}, f"{name} names groups that do not exist"


def same_rows(name: str, source: Any, second_source: Any) -> list[Row]:
    """Asserts that a data source gives the same rows, with unique ids, in any order of reading.

    Returns the rows that are not broken.
    """
    assert len(source) == len(second_source) > 0, f"{name} has no rows, or not always the same number"
    rows: dict[int, Row] = {}
    for index in range(len(source)):
        try:
            rows[index] = source[index]
        except ValueError as error:
            assert str(error), f"{name} calls row {index} broken without saying why"
    for index in reversed(rows):
        assert second_source[index] == rows[index], f"{name}'s row {index} is different the second time"
    assert len({row.id for row in rows.values()}) == len(rows), f"{name} has two rows with the same id"
    return list(rows.values())


def same_choices(name: str, make: Callable[[], Any], rows: Sequence[Row]) -> list[Choice]:
    """Asserts that a data source that chooses its rows chooses existing ones, and the same ones after the
    same results, also when it continues from its state. `make` constructs the source; `rows` are its usable
    rows.

    Returns the choices.
    """
    first, second = make(), make()
    choices: list[Choice] = []
    for number in range(40):
        if number % 4 == 0:
            second = _restored(name, make(), second.state())
        choice = first.choose(4)
        assert choice == second.choose(4), f"{name} chooses differently the second time"
        assert 0 <= choice.row < len(first), f"{name} chooses row {choice.row}, but has {len(first)}"
        assert 1 <= choice.samples <= 4, f"{name} asks for {choice.samples} samples; the limit was 4"
        group = _scored_group(rows[number % len(rows)], number)
        before = pickle.dumps(group)
        first.observe(group)
        second.observe(group)
        assert pickle.dumps(group) == before, f"{name} changes the group it observes"
        choices.append(choice)
    metrics = first.metrics()
    assert all(np.isfinite(value) for value in metrics.values()), f"{name} has metrics that are not finite"
    return choices


def _scored_group(row: Row, number: int) -> Group:
    """Returns two samples of a row, whose rewards differ for every other number."""
    prompt = Prompt(row, number, np.ones(3, dtype=np.int32))
    tokens, ones = np.ones(2, dtype=np.int32), np.ones(2, dtype=np.float32)
    samples = [
        Sample(
            *(f"{number}-{place}", prompt, tokens, -ones, ones, (VersionSpan(0, 0, 2),)),
            *(Status.COMPLETED, "an answer"),
            reward=float(place * (number % 2)),
        )
        for place in range(2)
    ]
    return Group(prompt, samples)


def same_losses(name: str, loss: Callable[[Any], LossOutputs], inputs: Any, trained: Any) -> None:
    """Asserts that a loss is one number per token, the same every time, and has a finite gradient for what is
    `trained`: log-probs, values or scores.
    """
    outputs, repeated = loss(inputs), loss(inputs)
    length = len(inputs.mask)
    assert outputs.loss.shape == (length,), f"{name}'s loss is not one number per token"
    assert bool((outputs.loss == repeated.loss).all()), f"{name}'s loss is different the second time"
    for metric, values in outputs.metrics.items():
        assert values.shape == (length,), f"{name}'s metric {metric!r} is not one number per token"
        assert not values.requires_grad, f"{name}'s metric {metric!r} carries a gradient; detach it"
    outputs.loss.sum().backward()
    gradient = trained.grad
    assert gradient is not None and bool(gradient.isfinite().all()), f"{name}'s loss has no finite gradient"


def same_arrays(name: str, what: str, method: Callable[[Any], Any], groups: Sequence[Group]) -> None:
    """Asserts that advantages or returns are one finite float32 per token, the same every time.

    `what` is the arrays' name in messages. The method must not change the groups.
    """
    before = copy.deepcopy(groups)
    arrays = method(groups)
    samples = [sample for group in groups for sample in group.samples]
    assert pickle.dumps(groups) == pickle.dumps(before), f"{name} changes the groups it compares"
    for sample, array, repeated in zip(samples, arrays, method(groups), strict=True):
        assert array.shape == sample.tokens.shape, f"{name}'s {what} are not one number per token"
        assert array.dtype == np.float32, f"{name}'s {what} are {array.dtype}, not float32"
        assert np.isfinite(array).all(), f"{name}'s {what} are not finite"
        assert np.array_equal(array, repeated), f"{name}'s {what} are different the second time"


def same_masks(name: str, method: str, first: Any, second: Any, groups: Sequence[Group]) -> None:
    """Asserts that a hook's `on_samples` or `on_removed` changes of the samples only what it may, and the
    same in every process.
    """
    repeated = copy.deepcopy(groups)
    before = SamplesBefore(groups)
    getattr(first, method)(groups)
    fault = before.fault()
    assert fault is None, f"{name}.{method}: {fault}"
    getattr(second, method)(repeated)
    for one, other in zip(groups, repeated, strict=True):
        for sample, again in zip(one.samples, other.samples, strict=True):
            same = np.array_equal(sample.loss_mask, again.loss_mask)
            assert same, f"{name} masks sample {sample.id} differently the second time"


def same_replacements(name: str, first: Any, second: Any, inputs: LossInputs) -> None:
    """Asserts that a hook gives a micro-batch the right advantages, or None, the same in every process."""
    advantages, repeated = first.on_batch(inputs), second.on_batch(inputs)
    assert (advantages is None) == (repeated is None), f"{name}.on_batch answers only sometimes"
    if advantages is not None:
        fault = advantages_fault(advantages, inputs)
        assert fault is None, f"{name}.on_batch: {fault}"
        assert bool((advantages == repeated).all()), f"{name}.on_batch answers differently the second time"


def finite_gradients(name: str, hook: Any) -> None:
    """Asserts that a hook takes a model, and leaves finite gradients of a step of it."""
    import torch

    model = torch.nn.Linear(4, 2)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    part = PolicyPart([model], parameters, [optimizer], rank=0, update=0)
    if hasattr(hook, "on_model"):
        hook.on_model(part)
    outputs = model(torch.ones(3, 4))
    if outputs.requires_grad:
        outputs.sum().backward()
    if hasattr(hook, "before_update"):
        hook.before_update(part)
    for key, parameter in parameters.items():
        finite = parameter.grad is None or bool(parameter.grad.isfinite().all())
        assert finite, f"{name} leaves gradients of {key} that are not finite"
