"""Checks that every plugin must pass, for plugin authors' tests.

    from rlrun.plugins.testing import check_reward, sample

    def test_contract():
        check_reward("wordcount", {"target": 3}, [sample("one two three")])

Each check raises AssertionError with what the plugin does wrong. It constructs the plugin as a job does, by
name and parameters, so it also finds a missing entry point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rlrun.plugins.authoring import contracts
from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.submission import Submission
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
    """Returns a finished sample with all fields that rollout and trainer set.

    Its response has one token per word of `text`, or `length` tokens.
    """
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
        greedy_reward=0.0,
        policy_log_probs=np.full(count, -1.0, dtype=np.float32),
        policy_entropies=np.linspace(2.0, 0.5, count, dtype=np.float32),
        policy_squared_probs=np.linspace(0.2, 0.7, count, dtype=np.float32),
        reference_log_probs=np.full(count, -1.5, dtype=np.float32),
        teacher_log_probs=np.full(count, -0.5, dtype=np.float32),
        values=np.linspace(0.0, 1.0, count, dtype=np.float32),
        value_after=1.0,
    )


def group(rewards: Sequence[float], lengths: Sequence[int] | None = None) -> Group:
    """Returns a scored group with one sample per reward; `lengths` are their numbers of tokens.

    Without `lengths` the samples have 1, 2, 3, … tokens.
    """
    counts = range(1, len(rewards) + 1) if lengths is None else lengths
    samples = [
        sample(reward=reward, length=length, id=f"0-{number}")
        for number, (reward, length) in enumerate(zip(rewards, counts, strict=True))
    ]
    return Group(samples[0].prompt, samples)


def micro_batch(num_tokens: int = 12, num_samples: int = 3, seed: int = 0, **fields: Any) -> LossInputs:
    """Returns random inputs of an algorithm's loss, with samples packed side by side.

    `fields` replace fields of the inputs.
    """
    import torch  # only tests of algorithms need it

    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float = 1.0) -> Any:
        return torch.randn(num_tokens, generator=generator) * scale

    old = -noise().abs()
    inputs: dict[str, Any] = {
        "log_probs": (old + noise(0.3)).requires_grad_(),
        "entropy": noise().abs().requires_grad_(),
        "old_log_probs": old,
        "rollout_log_probs": old + noise(0.3),
        "reference_log_probs": old + noise(0.3),
        "advantages": noise(),
        "mask": (noise() > -1).float(),
        "sample": torch.arange(num_tokens) * num_samples // num_tokens,
        "num_samples": num_samples,
        "marks": (noise() > 1).float(),
        "divergence": noise().abs().requires_grad_(),
        "scores": torch.randn(num_samples, generator=generator).requires_grad_(),
    }
    return LossInputs(**(inputs | fields))


def value_micro_batch(num_tokens: int = 12, seed: int = 0) -> ValueInputs:
    """Returns random inputs of a critic's loss."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    old, change, returns, mask = torch.randn(4, num_tokens, generator=generator).unbind()
    return ValueInputs(
        values=(old + change).requires_grad_(), old_values=old, returns=returns, mask=(mask > -1).float()
    )


def check_parameters(kind: str, name: str, params: Params) -> None:
    """Asserts that a plugin accepts these parameters, refuses unknown ones and documents all of its own."""
    build(kind, name, params)
    try:
        build(kind, name, {**params, "no_such_parameter": 1})
    except PluginError as error:
        assert "no_such_parameter" in str(error), (
            f"{name} refuses an unknown parameter without naming it: {error}"
        )
    else:
        raise AssertionError(f"{name} accepts an unknown parameter: give its Params extra='forbid'")
    contracts.sound_parameters(name, load(kind, name).Params, params)


def check_plugin(kind: str, name: str, params: Params | None = None) -> None:
    """Asserts the contract of a plugin of any kind.

    `params` default to the plugin's `example`, or to no parameters if it has none. Raises AssertionError if
    the plugin breaks the contract, and PluginError if it cannot be constructed.
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
        case "rollouts" | "tools" | "agents" | "environments":
            from rlrun.plugins.authoring import rollout_testing

            check_parameters(kind, name, given)
            rollout_testing.CHECKS[kind](name, given)
        case "trackers":
            with TemporaryDirectory() as folder:
                check_tracker(name, given, folder)
        case "algorithms":
            _check_any_groups(name, given)
        case "buffers":
            check_buffer(name, given)
        case "hooks":
            check_hook(name, given)
        case "launchers":
            check_launcher(name, given)
        case _:
            raise AssertionError(f"unknown kind of plugin: {kind}")


def _check_any_samples(name: str, params: Params) -> None:
    """Asserts the contract of rewards for unusual answers. A ValueError must say why it refuses the row."""
    texts = ["an answer", "", "42", "\\boxed{42}", "word " * 2000, "\U0001f600 \x00"]
    for number, text in enumerate(texts):
        try:
            check_reward(name, params, [sample(text, label="42", id=f"{number}-0")])
        except ValueError as error:
            assert str(error), f"{name} refuses {text[:20]!r} without saying why"


def _check_any_groups(name: str, params: Params) -> None:
    """Asserts the contract of algorithms. A ValueError must say why it refuses rows without metadata."""
    try:
        check_algorithm(name, params)
    except PluginError:
        raise
    except ValueError as error:
        assert str(error), f"{name} refuses a row without saying why"


def check_reward(name: str, params: Params, samples: Sequence[Sample]) -> list[Any]:
    """Asserts that a reward gives finite numbers (or tables of them), the same every time, and does not
    change the samples.

    Returns the scores.
    """
    return contracts.same_scores(name, *_twice("rewards", name, params), samples)


def check_filter(name: str, params: Params, groups: Sequence[Group]) -> list[Drop | Mask | None]:
    """Asserts that a filter gives None, or a Drop or Mask with a reason, the same every time, and does not
    change the groups. A filter with state must continue from its restored state.

    Returns the verdicts.
    """
    check_parameters("filters", name, params)
    return contracts.same_verdicts(name, lambda: build("filters", name, params), groups)


def check_buffer(name: str, params: Params) -> None:
    """Asserts that a buffer gives indices of the given groups, each at most once and the same every time.

    It must accept an empty buffer.
    """
    buffered = [Buffered(index, index % 2 == 0, 10 * index, 7 - index % 3) for index in range(9)]
    contracts.same_order(name, *_twice("buffers", name, params), buffered)


def check_data(name: str, params: Params) -> list[Row]:
    """Asserts that a data source gives rows with unique ids, the same from every instance and in any order. A
    source that chooses its rows must repeat its choices, also from a restored state.

    Returns the rows that are not broken.
    """
    rows = contracts.same_rows(name, *_twice("data", name, params))
    if hasattr(load("data", name), "choose"):
        contracts.same_choices(name, lambda: build("data", name, params), rows)
    return rows


def check_tracker(name: str, params: Params, run_folder: str) -> None:
    """Asserts that a tracker logs a run and its resumption, and can be closed at any time."""
    check_parameters("trackers", name, params)
    build("trackers", name, params).close()
    for steps in (range(2), range(2, 3)):
        tracker = build("trackers", name, params)
        tracker.start(run_folder, "run", {"name": "run"})
        for step in steps:
            if hasattr(tracker, "log_table"):
                tracker.log_table(step, "samples", ("id", "reward"), [["0-0", 1.0], ["0-1", None]])
            tracker.log(step, {"train/loss": 1.0 / (step + 1), "rollout/reward": float("nan")})
            if hasattr(tracker, "alert"):
                tracker.alert(step, "kl_growth", "train/kl_loss is 0.7 nats per token")
        tracker.close()


def check_launcher(name: str, params: Params) -> None:
    """Asserts that a launcher writes the same files each time, into the job's folder, and that they run
    `rlrun attempt`. Calls no scheduler.
    """
    check_parameters("launchers", name, params)
    first, second = (
        build("launchers", name, params).files(
            Submission("a-run", Path("/work/runs/.submitted/a-run"), Path("/work"), 2, 8, 64)
        )
        for _ in range(2)
    )
    assert first == second, f"{name} writes other files the second time"
    assert all(Path(file).name == file for file in first), (
        f"{name} names a file outside of the folder: {[*first]}"
    )
    assert any(" attempt " in text for text in first.values()), f"no file of {name} runs `rlrun attempt`"


def check_hook(name: str, params: Params) -> None:
    """Asserts that a hook changes of samples and micro-batches only what it may, and the same every time.

    `on_model` and `before_update` are called with a small linear model, whose gradients must stay finite.
    """
    first, second = _twice("hooks", name, params)
    for method in ("on_removed", "on_samples"):
        if hasattr(first, method):
            groups = [group([1.0, 0.0, 0.5]), group([1.0, 1.0], lengths=[4, 0])]
            contracts.same_masks(name, method, first, second, groups)
    if hasattr(first, "on_batch"):
        contracts.same_replacements(name, first, second, micro_batch())
    if hasattr(first, "on_model") or hasattr(first, "before_update"):
        contracts.finite_gradients(name, first)


def check_algorithm(name: str, params: Params) -> None:
    """Asserts that an algorithm's advantages and losses have the right shapes, are finite and the same every
    time, and that it does not change the groups.
    """
    check_parameters("algorithms", name, params)
    algorithm = build("algorithms", name, params)
    inputs = micro_batch(num_samples=4 if algorithm.needs.pairs else 3)
    assert isinstance(algorithm.needs, Needs), f"{name}.needs is {algorithm.needs!r}, not Needs"
    if algorithm.needs.state:
        contracts.same_state(name, lambda: build("algorithms", name, params), _step_groups(algorithm))
        inputs = replace(inputs, step_values=algorithm.step_values())
    trained = _trained(algorithm.needs, inputs)
    contracts.same_losses(name, algorithm.loss, inputs, trained)
    if algorithm.needs.critic:
        critic = value_micro_batch()
        contracts.same_losses(f"{name}.value", algorithm.value_loss, critic, critic.values)
    _check_advantages(name, algorithm)


def _trained(needs: Needs, inputs: LossInputs) -> Any:
    """Returns what the loss has a gradient for."""
    if needs.scores:
        return inputs.scores
    return inputs.log_probs if needs.divergence is None else inputs.divergence


def _step_groups(algorithm: Any) -> list[Group]:
    """Returns the groups of a step, one of whose samples failed, and another one is not trained."""
    groups = [group([1.0, 0.0, 0.5]), group([1.0, 1.0], lengths=[4, 0]), group([0.0, 2.0])]
    groups[0].samples[1].loss_mask[:] = 0
    groups[2].samples[0].status = Status.FAILED
    if algorithm.needs.labels:
        for one in groups:
            one.prompt = replace(one.prompt, row=replace(one.prompt.row, label=True))
    return groups


def _check_advantages(name: str, algorithm: Any) -> None:
    groups = _step_groups(algorithm)
    if algorithm.needs.state:
        algorithm.observe(groups)
    contracts.same_arrays(name, "advantages", algorithm.advantages, groups)
    if algorithm.needs.critic:
        contracts.same_arrays(name, "returns", algorithm.returns, groups)
    if algorithm.needs.marks:
        contracts.same_arrays(
            name, "marks", lambda given: algorithm.marks(given, algorithm.advantages(given)), groups
        )


def _twice(kind: str, name: str, params: Params) -> tuple[Any, Any]:
    """Returns two instances of the plugin, after checking its parameters."""
    check_parameters(kind, name, params)
    return build(kind, name, params), build(kind, name, params)
