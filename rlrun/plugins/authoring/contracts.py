"""What plugins' answers must be like: what `rlrun.plugins.testing` asserts of plugins that it has made.

Each function raises AssertionError with what is wrong; `name` is the plugin's. Those that take two of a
plugin want the same of both.
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

from rlrun.plugins.types import Buffered, Drop, Group, LossOutputs, Mask, Row, Sample
from rlrun.specs.problems.docstrings import field_docstrings


def sound_parameters(name: str, model: type[BaseModel], params: Mapping[str, Any]) -> None:
    """Parameters survive being sent to another process, and each has a docstring."""
    checked = model.model_validate(dict(params))
    assert pickle.loads(pickle.dumps(checked)) == checked, f"{name}'s parameters change when they are pickled"
    undocumented = model.model_fields.keys() - field_docstrings(model).keys()
    assert not undocumented, f"{name}'s parameters {sorted(undocumented)} have no docstring"


def same_scores(name: str, first: Any, second: Any, samples: Sequence[Sample]) -> list[Any]:
    """Rewards: finite numbers, or tables of them, and samples untouched. Returns the scores."""
    before = pickle.dumps(list(samples))
    scores = asyncio.run(_scores(first, samples))
    assert pickle.dumps(list(samples)) == before, f"{name} changes the sample it scores"
    again = asyncio.run(_scores(second, pickle.loads(before)))
    assert len(scores) == len(samples), f"{name} gives {len(scores)} scores for {len(samples)} samples"
    for one, score, other in zip(samples, scores, again, strict=True):
        values = list(score.values()) if isinstance(score, Mapping) else [score]
        numbers = [value for value in values if not (isinstance(score, Mapping) and isinstance(value, str))]
        finite = all(isinstance(value, int | float) and np.isfinite(value) for value in numbers)
        assert numbers and finite, f"{name} scores {one.text!r} as {score!r}, not a finite number"
        assert score == other, f"{name} scores {one.text!r} differently the second time"
    return scores


async def _scores(reward: Any, samples: Sequence[Sample]) -> list[Any]:
    """What a reward gives samples, whether it waits or not, one by one or all at once."""
    grouped = hasattr(reward, "score_group")
    calls = [reward.score_group(samples)] if grouped else [reward.score(one) for one in samples]
    results = [await call if inspect.isawaitable(call) else call for call in calls]
    return list(results[0]) if grouped else results


def same_verdicts(name: str, make: Callable[[], Any], groups: Sequence[Group]) -> list[Drop | Mask | None]:
    """Filters: None, or a verdict with a reason on samples that are there, and groups untouched; one that
    remembers goes on from its state. `make` makes one. Returns the verdicts.
    """
    first, second = make(), make()
    verdicts: list[Drop | Mask | None] = []
    for one in groups:
        before = pickle.dumps(one)
        if hasattr(second, "state"):
            second = _restored(name, make(), second.state())
        verdict = first(one)
        assert pickle.dumps(one) == before, f"{name} changes the group it looks at"
        assert verdict == second(one), f"{name} judges the same group differently the second time"
        assert verdict is None or (isinstance(verdict, Drop | Mask) and verdict.reason), (
            f"{name} returned {verdict!r}"
        )
        places = verdict and verdict.samples
        assert all(0 <= place < len(one.samples) for place in places or ()), f"{name} judges samples {places}"
        verdicts.append(verdict)
    return verdicts


def _restored(name: str, fresh: Any, state: Any) -> Any:
    """A filter that goes on from another one's state."""
    assert json.loads(json.dumps(state)) == state, f"{name}'s state is not JSON"
    fresh.restore(state)
    return fresh


def same_order(name: str, first: Any, second: Any, buffered: Sequence[Buffered]) -> None:
    """Buffers: indices that they were given, none twice; nothing of an empty buffer."""
    assert list(first.order([], 8)) == [], f"{name} finds groups in an empty buffer"
    order = list(first.order(buffered, 8))
    assert order == list(second.order(buffered, 8)), f"{name} orders the same buffer differently"
    assert len(set(order)) == len(order), f"{name} uses a group twice"
    assert set(order) <= {one.index for one in buffered}, f"{name} names groups that are not there"


def same_rows(name: str, source: Any, other: Any) -> list[Row]:
    """Data: rows with ids of their own, in any order. Returns the readable rows."""
    assert len(source) == len(other) > 0, f"{name} has no rows, or not always as many"
    rows: dict[int, Row] = {}
    for index in range(len(source)):
        try:
            rows[index] = source[index]
        except ValueError as error:
            assert str(error), f"{name} calls row {index} broken without saying why"
    for index in reversed(rows):
        assert other[index] == rows[index], f"{name}'s row {index} is different the second time"
    assert len({row.id for row in rows.values()}) == len(rows), f"{name} has two rows with the same id"
    return list(rows.values())


def same_losses(name: str, loss: Callable[[Any], LossOutputs], inputs: Any, trained: Any) -> None:
    """Losses: one finite number a token, the same every time, with a gradient for what is trained."""
    outputs, again = loss(inputs), loss(inputs)
    length = len(trained)
    assert outputs.loss.shape == (length,), f"{name}'s loss is not one number a token"
    assert bool((outputs.loss == again.loss).all()), f"{name}'s loss is different the second time"
    for metric, values in outputs.metrics.items():
        assert values.shape == (length,), f"{name}'s metric {metric!r} is not one number a token"
        assert not values.requires_grad, f"{name}'s metric {metric!r} carries a gradient; detach it"
    outputs.loss.sum().backward()
    gradient = trained.grad
    assert gradient is not None and bool(gradient.isfinite().all()), f"{name}'s loss has no finite gradient"


def same_arrays(name: str, what: str, method: Callable[[Any], Any], groups: Sequence[Group]) -> None:
    """Advantages and returns: one finite float32 a token, the same every time; groups untouched."""
    before = copy.deepcopy(groups)
    arrays = method(groups)
    samples = [one for each in groups for one in each.samples]
    assert pickle.dumps(groups) == pickle.dumps(before), f"{name} changes the groups it compares"
    for one, array, again in zip(samples, arrays, method(groups), strict=True):
        assert array.shape == one.tokens.shape, f"{name}'s {what} are not one number a token"
        assert array.dtype == np.float32, f"{name}'s {what} are {array.dtype}, not float32"
        assert np.isfinite(array).all(), f"{name}'s {what} are not finite"
        assert np.array_equal(array, again), f"{name}'s {what} are different the second time"
