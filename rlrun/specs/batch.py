"""The batch equation: prompts · samples a prompt = global batch · optimizer steps (P·n = G·S)."""

from dataclasses import dataclass

from rlrun.specs.job import Spec


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """One rollout step in numbers; SFT has G demonstrations of one sample each."""

    prompts: int
    """P"""
    samples_per_prompt: int
    """n"""
    global_batch_size: int
    """G"""
    optimizer_steps: int
    """S"""

    @property
    def samples(self) -> int:
        """P·n."""
        return self.prompts * self.samples_per_prompt


def batch_numbers(spec: Spec, rollout: bool) -> BatchNumbers:
    """The four numbers, what is not given derived from the rest; `rollout` is false for SFT.

    Raises ValueError with all four and the nearest values that fit.
    """
    given_size, given_steps = spec.trainer.global_batch_size, spec.trainer.optimizer_steps
    if not rollout:
        if given_size is None:
            raise ValueError(
                "an algorithm without rollouts needs trainer.global_batch_size: demonstrations a step"
            )
        return BatchNumbers(given_size, 1, given_size, 1)
    prompts, per_prompt = spec.rollout.batch_size, spec.rollout.samples_per_prompt
    samples = prompts * per_prompt
    steps = given_steps or (samples // given_size if given_size else 1)
    size = given_size or samples // steps
    if size * steps != samples or not size:
        raise ValueError(_mismatch(prompts, per_prompt, given_size, given_steps))
    return BatchNumbers(prompts, per_prompt, size, steps)


def nearest_batches(spec: Spec, rollout: bool) -> str:
    """Values near the given ones that make the equation hold, as a sentence."""
    degree = spec.trainer.parallel.data_degree
    size, steps = spec.trainer.global_batch_size, spec.trainer.optimizer_steps
    if not rollout:
        near = [fit for fit in _around_multiple(size or degree, degree) if fit]
        return _choices("trainer.global_batch_size", near)
    samples = spec.rollout.batch_size * spec.rollout.samples_per_prompt
    sizes = [size for size in _divisors(samples) if size % degree == 0]
    wanted = size or max(1, samples // (steps or 1))
    near_sizes = _around(sizes, wanted)
    fits = [f"trainer.global_batch_size = {fit} (S = {samples // fit})" for fit in near_sizes]
    unit = wanted if wanted % degree == 0 else wanted * degree
    total_unit = unit * (steps if size and steps else 1)
    prompts = [
        fit // spec.rollout.samples_per_prompt
        for fit in _around_multiple(samples, total_unit)
        if fit and fit % spec.rollout.samples_per_prompt == 0
    ]
    return "; or ".join([*fits, _choices("rollout.batch_size", prompts)] if prompts else fits) or (
        f"make P·n a multiple of the {degree} ranks that see different samples"
    )


def _mismatch(prompts: int, per_prompt: int, size: int | None, steps: int | None) -> str:
    right = (
        f"trainer.global_batch_size G = {size if size else '?'} × trainer.optimizer_steps S = {steps or '?'}"
    )
    return (
        f"P·n = G·S does not hold: rollout.batch_size P = {prompts} × rollout.samples_per_prompt "
        f"n = {per_prompt} are {prompts * per_prompt} samples, which do not split into {right}"
    )


def _choices(key: str, values: list[int]) -> str:
    return f"{key} = {' or '.join(map(str, values))}"


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _around(sorted_values: list[int], wanted: int) -> list[int]:
    """The nearest value at or below and the nearest at or above."""
    below = [value for value in sorted_values if value <= wanted][-1:]
    above = [value for value in sorted_values if value >= wanted][:1]
    return sorted({*below, *above})


def _around_multiple(number: int, unit: int) -> list[int]:
    return sorted({number // unit * unit, -(-number // unit) * unit})
