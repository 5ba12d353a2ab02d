"""The batch equation: prompts · samples per prompt = global batch · optimizer steps (P·n = G·S)."""

from dataclasses import dataclass

from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

BATCH_KEYS: tuple[KeyPath, ...] = (
    ("trainer", "global_batch_size"),
    ("trainer", "optimizer_steps"),
    ("rollout", "batch_size"),
    ("rollout", "samples_per_prompt"),
)


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """The sizes of one rollout step. For SFT, a step is one optimizer step on G demonstrations."""

    prompts: int
    """P: number of prompts."""
    samples_per_prompt: int
    """n: number of samples per prompt."""
    global_batch_size: int
    """G: number of samples per optimizer step."""
    optimizer_steps: int
    """S: number of optimizer steps."""

    @property
    def samples(self) -> int:
        """Number of samples, P·n."""
        return self.prompts * self.samples_per_prompt


def batch_numbers(spec: Spec, rollout: bool) -> BatchNumbers:
    """Returns the four numbers, and derives those that the spec does not give. `rollout` is False for SFT.

    Raises ValueError with the numbers where the equation does not hold.
    """
    given_size: int | None = spec.trainer.given("global_batch_size")
    given_steps: int | None = spec.trainer.given("optimizer_steps")
    if not rollout:
        if given_size is None:
            raise ValueError("required without rollouts: the number of rows per optimizer step")
        return BatchNumbers(given_size, 1, given_size, 1)
    prompts, per_prompt = spec.rollout.batch_size, spec.rollout.samples_per_prompt
    samples = prompts * per_prompt
    steps = given_steps or (samples // given_size if given_size else 1)
    size = given_size or samples // steps
    if size * steps != samples or not size:
        raise ValueError(_mismatch(prompts, per_prompt, given_size, given_steps))
    return BatchNumbers(prompts, per_prompt, size, steps)


def nearest_batches(spec: Spec, rollout: bool) -> str:
    """Returns settings near the given ones that make the equation hold on every data rank."""
    degree = spec.trainer.parallel.data_degree
    size: int | None = spec.trainer.given("global_batch_size")
    steps: int | None = spec.trainer.given("optimizer_steps")
    if not rollout:
        return _choices("trainer.global_batch_size", _multiples_around(size or 32, degree))
    per_prompt = spec.rollout.samples_per_prompt
    samples = spec.rollout.batch_size * per_prompt
    sizes = [divisor for divisor in _divisors(samples) if divisor % degree == 0]
    near = _around(sizes, size or samples // (steps or 1))
    settings = [
        f"trainer.global_batch_size = {value} with optimizer_steps = {samples // value}" for value in near
    ]
    unit = size * steps if size and steps else (size or degree * (steps or 1))
    totals = [unit] if size and steps else _multiples_around(samples, unit)
    if not unit % degree and (
        prompts := [total // per_prompt for total in totals if total % per_prompt == 0]
    ):
        settings.append(_choices("rollout.batch_size", prompts))
    return ", or ".join(settings) or f"rollout.batch_size · samples_per_prompt to a multiple of {degree}"


def _mismatch(prompts: int, per_prompt: int, size: int | None, steps: int | None) -> str:
    samples = prompts * per_prompt
    prompt_side = (
        f"P·n = {prompts} · {per_prompt} = {samples} (rollout.batch_size · rollout.samples_per_prompt)"
    )
    if size and steps:
        update_side = (
            f"G·S = {size} · {steps} = {size * steps} (trainer.global_batch_size · trainer.optimizer_steps)"
        )
    elif size:
        update_side = f"G = {size} (trainer.global_batch_size) gives S = {samples / size:.4g} optimizer steps"
    else:
        update_side = f"S = {steps} (trainer.optimizer_steps) gives G = {samples / (steps or 1):.4g} samples"
    return f"the batch equation P·n = G·S does not hold: {prompt_side}, {update_side}"


def _choices(key: str, values: list[int]) -> str:
    return f"{key} = {' or '.join(map(str, values))}"


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _around(sorted_values: list[int], target: int) -> list[int]:
    """Returns the nearest value at or below the target and the nearest at or above it."""
    below = [value for value in sorted_values if value <= target][-1:]
    above = [value for value in sorted_values if value >= target][:1]
    return sorted({*below, *above})


def _multiples_around(number: int, unit: int) -> list[int]:
    """Returns the nearest positive multiples of `unit` at or below `number` and at or above it."""
    return sorted({number // unit * unit, -(-number // unit) * unit} - {0})
