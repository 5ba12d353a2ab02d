"""The batch equation and the values it suggests, as named rows."""

import pytest

from rlrun.specs.derived.batch_equation import BatchNumbers, batch_numbers, nearest_batches
from rlrun.specs.sections.job import Spec


def spec(
    prompts: int, samples: int, size: int | None = None, steps: int | None = None, fsdp: int = 1
) -> Spec:
    sizes = {"global_batch_size": size, "optimizer_steps": steps}
    trainer = {"steps": 1, "parallel": {"fsdp": fsdp}} | {k: v for k, v in sizes.items() if v is not None}
    rollout = {"batch_size": prompts, "samples_per_prompt": samples}
    return Spec.model_validate({"model": {"path": "a"}, "data": {}, "rollout": rollout, "trainer": trainer})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spec(32, 8), BatchNumbers(32, 8, 256, 1)),
        (spec(32, 8, size=64), BatchNumbers(32, 8, 64, 4)),
        (spec(32, 8, steps=2), BatchNumbers(32, 8, 128, 2)),
        (spec(32, 8, size=128, steps=2), BatchNumbers(32, 8, 128, 2)),
    ],
)
def test_what_is_not_given_follows(given: Spec, expected: BatchNumbers) -> None:
    assert batch_numbers(given, rollout=True) == expected
    assert expected.samples == expected.global_batch_size * expected.optimizer_steps


def test_demonstrations_count_themselves() -> None:
    assert batch_numbers(spec(32, 8, size=24), rollout=False) == BatchNumbers(24, 1, 24, 1)
    with pytest.raises(ValueError, match="number of rows per optimizer step"):
        batch_numbers(spec(32, 8), rollout=False)


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        (spec(32, 8, size=100), ("32 · 8 = 256", "G = 100", "S = 2.56")),
        (spec(32, 8, size=512), ("32 · 8 = 256", "G = 512", "S = 0.5")),
        (spec(32, 8, steps=3), ("32 · 8 = 256", "S = 3", "G = 85.33")),
        (spec(1, 2, steps=3), ("1 · 2 = 2", "S = 3", "G = 0.6667")),
        (spec(4, 8, size=16, steps=4), ("4 · 8 = 32", "16 · 4 = 64")),
    ],
)
def test_a_mismatch_shows_all_numbers(given: Spec, numbers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="P·n = G·S does not hold") as caught:
        batch_numbers(given, rollout=True)
    for number in numbers:
        assert number in str(caught.value)


def applied(given: Spec, suggestion: str) -> list[Spec]:
    """The specs that a suggestion makes of one."""
    if suggestion.startswith("trainer.global_batch_size = "):
        size, steps = (int(part.rsplit(" ", 1)[1]) for part in suggestion.split(" with "))
        update = {"global_batch_size": size, "optimizer_steps": steps}
        return [given.model_copy(update={"trainer": given.trainer.model_copy(update=update)})]
    values = suggestion.removeprefix("rollout.batch_size = ").split(" or ")
    rollouts = [given.rollout.model_copy(update={"batch_size": int(value)}) for value in values]
    return [given.model_copy(update={"rollout": rollout}) for rollout in rollouts]


@pytest.mark.parametrize(
    "given",
    [
        spec(32, 8, size=100),
        spec(32, 8, steps=3),
        spec(4, 8, size=16, steps=4),
        spec(4, 2, fsdp=3),
        spec(7, 3, size=4, fsdp=2),
        spec(1, 2, steps=5),
    ],
)
def test_every_suggestion_holds(given: Spec) -> None:
    suggestions = nearest_batches(given, rollout=True)
    fixed = [spec for suggestion in suggestions.split(", or ") for spec in applied(given, suggestion)]
    assert fixed
    for each in fixed:
        assert batch_numbers(each, rollout=True).global_batch_size % given.trainer.parallel.data_degree == 0
