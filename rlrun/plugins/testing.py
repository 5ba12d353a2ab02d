"""Checks that every plugin must pass, for the tests of whoever writes one.

    from rlrun.plugins.testing import check_reward, sample

    def test_contract():
        check_reward("wordcount", {"target": 3}, [sample("one two three")])

Each check raises AssertionError with what the plugin does wrong. Plugins are made as a job makes them, by
name and parameters, so a check also finds a missing entry point.
"""

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import BaseModel

from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.types import (
    Buffered,
    Drop,
    Group,
    LossInputs,
    LossOutputs,
    Mask,
    Needs,
    Prompt,
    Row,
    Sample,
    Status,
    ValueInputs,
    VersionSpan,
)
from rlrun.specs.docstrings import field_docstrings

Params = Mapping[str, Any]


def sample(
    text: str = "an answer",
    *,
    label: Any = None,
    metadata: Mapping[str, Any] | None = None,
    prompt: str = "a question",
    reward: float = float("nan"),
    length: int | None = None,
    status: Status = Status.COMPLETED,
    id: str = "0-0",
) -> Sample:
    """A finished sample as rollout and trainer leave it: one token a word, or `length` tokens."""
    count = len(text.split()) if length is None else length
    row = Row("0", prompt, label, metadata or {})
    return Sample(
        id=id,
        prompt=Prompt(row, 0, np.arange(3, dtype=np.int32)),
        tokens=np.arange(count, dtype=np.int32),
        log_probs=np.full(count, -1.0, dtype=np.float32),
        loss_mask=np.ones(count, dtype=np.float32),
        versions=(VersionSpan(0, 0, count),),
        status=status,
        text=text,
        reward=reward,
        policy_log_probs=np.full(count, -1.0, dtype=np.float32),
        reference_log_probs=np.full(count, -1.5, dtype=np.float32),
        teacher_log_probs=np.full(count, -0.5, dtype=np.float32),
        values=np.linspace(0.0, 1.0, count, dtype=np.float32),
    )


def group(rewards: Sequence[float], lengths: Sequence[int] | None = None) -> Group:
    """A scored group: one sample a reward, with the given numbers of tokens (1, 2, 3, … if not given)."""
    counts = range(1, len(rewards) + 1) if lengths is None else lengths
    samples = [
        sample(reward=reward, length=length, id=f"0-{number}")
        for number, (reward, length) in enumerate(zip(rewards, counts, strict=True))
    ]
    return Group(samples[0].prompt, samples)


def micro_batch(num_tokens: int = 12, num_samples: int = 3, seed: int = 0, **given: Any) -> LossInputs:
    """Noise for an algorithm's loss: the tokens of samples side by side; `given` replaces fields."""
    import torch  # only who tests an algorithm needs it

    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float = 1.0) -> Any:
        return torch.randn(num_tokens, generator=generator) * scale

    old = -noise().abs()
    fields: dict[str, Any] = {
        "log_probs": (old + noise(0.3)).requires_grad_(),
        "entropy": noise().abs().requires_grad_(),
        "old_log_probs": old,
        "rollout_log_probs": old + noise(0.3),
        "reference_log_probs": old + noise(0.3),
        "advantages": noise(),
        "mask": (noise() > -1).float(),
        "sample": torch.arange(num_tokens) * num_samples // num_tokens,
        "num_samples": num_samples,
    }
    return LossInputs(**(fields | given))


def value_micro_batch(num_tokens: int = 12, seed: int = 0) -> ValueInputs:
    """Noise for a critic's loss."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    old, away, returns, mask = torch.randn(4, num_tokens, generator=generator).unbind()
    return ValueInputs(
        values=(old + away).requires_grad_(), old_values=old, returns=returns, mask=(mask > -1).float()
    )


def check_parameters(kind: str, name: str, params: Params) -> None:
    """The plugin can be made with these parameters, refuses others, and its parameters survive being sent."""
    plugin = load(kind, name)
    build(kind, name, params)
    try:
        build(kind, name, {**params, "no_such_parameter": 1})
    except PluginError as error:
        assert "no_such_parameter" in str(error), (
            f"{name} refuses a parameter it does not know, unnamed: {error}"
        )
    else:
        raise AssertionError(f"{name} takes a parameter it does not know; give its Params extra='forbid'")
    checked: BaseModel = plugin.Params.model_validate(dict(params))
    assert pickle.loads(pickle.dumps(checked)) == checked, f"{name}'s parameters change when they are pickled"
    undocumented = plugin.Params.model_fields.keys() - field_docstrings(plugin.Params).keys()
    assert not undocumented, f"{name}'s parameters {sorted(undocumented)} have no docstring"


def check_plugin(kind: str, name: str, params: Params | None = None) -> None:
    """The contract of any plugin, with parameters of your own, or its `example` ones, or none.

    A plugin whose parameters all have defaults needs neither. AssertionError says what it does wrong,
    PluginError what keeps it from being made.
    """
    given = params if params is not None else getattr(load(kind, name), "example", {})
    match kind:
        case "rewards":
            check_parameters(kind, name, given)
            _check_any_samples(name, given)
        case "filters":
            check_filter(name, given, [group([1.0, 0.0]), group([1.0, 1.0, 1.0]), group([0.0])])
        case "data":
            check_data(name, given)
        case "rollouts" | "tools" | "agents":
            from rlrun.plugins import rollout_testing  # which stands on this module's neighbours

            check_parameters(kind, name, given)
            rollout_testing.CHECKS[kind](name, given)
        case "trackers":
            with TemporaryDirectory() as folder:
                check_tracker(name, given, folder)
        case "algorithms":
            check_algorithm(name, given)
        case "buffers":
            check_buffer(name, given)
        case _:
            raise AssertionError(f"no such kind of plugin: {kind}")


def _check_any_samples(name: str, params: Params) -> None:
    """Samples that any reward may meet; it may call a row broken (ValueError), with a reason."""
    texts = ["an answer", "", "42", "\\boxed{42}", "word " * 2000, "\U0001f600 \x00"]
    for number, text in enumerate(texts):
        one = sample(text, label="42", id=f"{number}-0")
        try:
            check_reward(name, params, [one])
        except ValueError as error:
            assert str(error), f"{name} refuses {text[:20]!r} without saying why"


def check_reward(name: str, params: Params, samples: Sequence[Sample]) -> list[Any]:
    """Finite numbers (or tables of them), always the same, samples untouched. Returns the scores."""
    check_parameters("rewards", name, params)
    first, second = build("rewards", name, params), build("rewards", name, params)
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


def check_filter(name: str, params: Params, groups: Sequence[Group]) -> list[Drop | Mask | None]:
    """None, or a Drop or Mask with a reason, the same every time, groups untouched; one that remembers goes
    on from its state. Returns the verdicts.
    """
    check_parameters("filters", name, params)
    first, second = build("filters", name, params), build("filters", name, params)
    verdicts: list[Drop | Mask | None] = []
    for one in groups:
        before = pickle.dumps(one)
        if hasattr(second, "state"):
            second = _restored(name, params, second)
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


def _restored(name: str, params: Params, judge: Any) -> Any:
    """Another filter that goes on from the state of this one."""
    state = judge.state()
    assert json.loads(json.dumps(state)) == state, f"{name}'s state is not JSON"
    other = build("filters", name, params)
    other.restore(state)
    return other


def check_buffer(name: str, params: Params) -> None:
    """Indices that it was given, none twice, the same every time; an empty buffer is fine."""
    check_parameters("buffers", name, params)
    first, second = build("buffers", name, params), build("buffers", name, params)
    buffered = [Buffered(index, index % 2 == 0, 10 * index, 7 - index % 3) for index in range(9)]
    assert list(first.order([], 8)) == [], f"{name} finds groups in an empty buffer"
    order = list(first.order(buffered, 8))
    assert order == list(second.order(buffered, 8)), f"{name} orders the same buffer differently"
    assert len(set(order)) == len(order), f"{name} uses a group twice"
    assert set(order) <= {one.index for one in buffered}, f"{name} names groups that are not there"


def check_data(name: str, params: Params) -> list[Row]:
    """Rows with ids of their own, the same from every instance, in any order. Returns the readable rows."""
    check_parameters("data", name, params)
    source, other = build("data", name, params), build("data", name, params)
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


def check_tracker(name: str, params: Params, run_folder: str) -> None:
    """Takes metrics of a run and of its resumption; can be closed at any time."""
    check_parameters("trackers", name, params)
    build("trackers", name, params).close()
    for steps in (range(2), range(2, 3)):
        tracker = build("trackers", name, params)
        tracker.start(run_folder, "run", {"name": "run"})
        for step in steps:
            tracker.log(step, {"train/loss": 1.0 / (step + 1), "rollout/reward": float("nan")})
        tracker.close()


def check_algorithm(name: str, params: Params) -> None:
    """Advantages and losses of the right shapes, finite, the same every time; groups untouched."""
    check_parameters("algorithms", name, params)
    algorithm = build("algorithms", name, params)
    inputs = micro_batch(num_samples=4 if algorithm.needs.pairs else 3)
    assert isinstance(algorithm.needs, Needs), f"{name}.needs is {algorithm.needs!r}, not Needs"
    _check_advantages(name, algorithm)
    _check_loss(name, algorithm.loss, inputs, inputs.log_probs)
    if algorithm.needs.critic:
        critic = value_micro_batch()
        _check_loss(f"{name}.value", algorithm.value_loss, critic, critic.values)


def _check_loss(name: str, loss: Callable[[Any], LossOutputs], inputs: Any, trained: Any) -> None:
    """One finite number a token, the same every time, with a gradient for what is trained."""
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


def _check_advantages(name: str, algorithm: Any) -> None:
    groups = [group([1.0, 0.0, 0.5]), group([1.0, 1.0], lengths=[4, 0]), group([0.0, 2.0])]
    groups[0].samples[1].loss_mask[:] = 0
    groups[2].samples[0].status = Status.FAILED
    _check_arrays(name, "advantages", algorithm.advantages, groups)
    if algorithm.needs.critic:
        _check_arrays(name, "returns", algorithm.returns, groups)


def _check_arrays(name: str, what: str, method: Callable[[Any], Any], groups: Sequence[Group]) -> None:
    before = copy.deepcopy(groups)
    arrays = method(groups)
    samples = [one for each in groups for one in each.samples]
    assert pickle.dumps(groups) == pickle.dumps(before), f"{name} changes the groups it compares"
    for one, array, again in zip(samples, arrays, method(groups), strict=True):
        assert array.shape == one.tokens.shape, f"{name}'s {what} are not one number a token"
        assert array.dtype == np.float32, f"{name}'s {what} are {array.dtype}, not float32"
        assert np.isfinite(array).all(), f"{name}'s {what} are not finite"
        assert np.array_equal(array, again), f"{name}'s {what} are different the second time"
