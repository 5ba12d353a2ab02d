"""Checks that every plugin must pass, for the tests of whoever writes one.

    from rlrun.plugins.testing import check_reward, sample

    def test_contract():
        check_reward("wordcount", {"target": 3}, [sample("one two three")])

Each check raises AssertionError with what the plugin does wrong. Plugins are made as a job makes them, by
name and parameters, so a check also finds a missing entry point.
"""

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rlrun.plugins.authoring import contracts
from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.types import (
    Buffered,
    Drop,
    Group,
    LossInputs,
    Mask,
    Needs,
    Prompt,
    Row,
    Sample,
    Status,
    ValueInputs,
    VersionSpan,
)

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
        value_after=1.0,
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
    build(kind, name, params)
    try:
        build(kind, name, {**params, "no_such_parameter": 1})
    except PluginError as error:
        assert "no_such_parameter" in str(error), (
            f"{name} refuses a parameter it does not know, unnamed: {error}"
        )
    else:
        raise AssertionError(f"{name} takes a parameter it does not know; give its Params extra='forbid'")
    contracts.sound_parameters(name, load(kind, name).Params, params)


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
            from rlrun.plugins.authoring import rollout_testing

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
    return contracts.same_scores(name, *_twice("rewards", name, params), samples)


def check_filter(name: str, params: Params, groups: Sequence[Group]) -> list[Drop | Mask | None]:
    """None, or a Drop or Mask with a reason, the same every time, groups untouched; one that remembers goes
    on from its state. Returns the verdicts.
    """
    check_parameters("filters", name, params)
    return contracts.same_verdicts(name, lambda: build("filters", name, params), groups)


def check_buffer(name: str, params: Params) -> None:
    """Indices that it was given, none twice, the same every time; an empty buffer is fine."""
    buffered = [Buffered(index, index % 2 == 0, 10 * index, 7 - index % 3) for index in range(9)]
    contracts.same_order(name, *_twice("buffers", name, params), buffered)


def check_data(name: str, params: Params) -> list[Row]:
    """Rows with ids of their own, the same from every instance, in any order. Returns the readable rows."""
    return contracts.same_rows(name, *_twice("data", name, params))


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
    contracts.same_losses(name, algorithm.loss, inputs, inputs.log_probs)
    if algorithm.needs.critic:
        critic = value_micro_batch()
        contracts.same_losses(f"{name}.value", algorithm.value_loss, critic, critic.values)


def _check_advantages(name: str, algorithm: Any) -> None:
    groups = [group([1.0, 0.0, 0.5]), group([1.0, 1.0], lengths=[4, 0]), group([0.0, 2.0])]
    groups[0].samples[1].loss_mask[:] = 0
    groups[2].samples[0].status = Status.FAILED
    contracts.same_arrays(name, "advantages", algorithm.advantages, groups)
    if algorithm.needs.critic:
        contracts.same_arrays(name, "returns", algorithm.returns, groups)


def _twice(kind: str, name: str, params: Params) -> tuple[Any, Any]:
    """Two of the plugin, whose parameters are checked."""
    check_parameters(kind, name, params)
    return build(kind, name, params), build(kind, name, params)
