"""The settings beside those of a dump that `rlrun conform` tries, to say which one explains a difference.

Each neighbour changes one thing: a key of the spec, or an input that trainers often get wrong, such as a mask
that is one token late. A neighbour that has nothing to change in a case has no variants.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from rlrun.plugins import registry
from rlrun.plugins.algorithms.correction import Correction
from rlrun.plugins.algorithms.kl import KLTerm
from rlrun.plugins.algorithms.objective import ObjectiveParams
from rlrun.runner.conform.dump import Array
from rlrun.runner.conform.terms import Case, log_probs_of_logits
from rlrun.specs.reading.reference import as_toml


@dataclass(frozen=True, slots=True)
class Variant:
    """A case with one thing changed.

    Example: `Variant('algorithm.std_divisor = "n"', case)`
    """

    setting: str
    """What the other trainer does, as a key of the spec where there is one."""
    case: Case


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One thing that the other trainer may do in another way."""

    name: str
    """Its row in docs/conform.md."""
    acts_on: str
    """The first term that it changes."""
    variants: Callable[[Case], Iterator[Variant]]


def _set(case: Case, **values: Any) -> Iterator[Variant]:
    """Yields the case with parameters of the algorithm changed, unless it has none of these names, or these
    values already. They are not validated: another trainer may do what rlrun refuses.
    """
    fields = type(case.params).model_fields
    if not values.keys() <= fields.keys() or all(getattr(case.params, key) == values[key] for key in values):
        return
    setting = ", ".join(f"algorithm.{key} = {as_toml(value)}" for key, value in values.items())
    yield Variant(setting, replace(case, params=case.params.model_copy(update=values)))


def _normalize_std(case: Case) -> Iterator[Variant]:
    yield from _set(case, normalize_std=not getattr(case.params, "normalize_std", True))


def _divisor(case: Case) -> Iterator[Variant]:
    for divisor in ("n-1", "n"):
        yield from _set(case, std_divisor=divisor)


def _epsilon(case: Case) -> Iterator[Variant]:
    for epsilon in (1e-4, 1e-5, 1e-6, 1e-8, 1e-9):
        yield from _set(case, std_epsilon=epsilon)


def _subtract_mean(case: Case) -> Iterator[Variant]:
    yield from _set(case, subtract_mean=not getattr(case.params, "subtract_mean", True))


def _whiten(case: Case) -> Iterator[Variant]:
    yield from _set(case, normalize_advantages=not getattr(case.params, "normalize_advantages", False))


def _leave_one_out(case: Case) -> Iterator[Variant]:
    yield from _of_type(case, "rloo" if case.type != "rloo" else "grpo")


def _of_type(case: Case, name: str) -> Iterator[Variant]:
    """Yields the case with another algorithm, which has the parameters that both have."""
    model = registry.load("algorithms", name).Params
    shared = {key: getattr(case.params, key) for key in type(case.params).model_fields}
    given = {key: value for key, value in shared.items() if key in model.model_fields}
    try:
        params = model.model_validate(given)
    except ValidationError:
        return
    yield Variant(f'algorithm.type = "{name}"', replace(case, type=name, params=params))


def _groups(case: Case) -> Iterator[Variant]:
    """Samples of a prompt follow each other, or come one from each prompt in turn; or all are compared."""
    count, prompts = len(case.batch.groups), len(np.unique(case.batch.groups))
    rows = np.arange(count)
    layouts = {"groups: all samples of the batch are one group": np.zeros(count, np.int64)}
    if count % prompts == 0:
        layouts["groups: the samples of a prompt follow each other"] = rows // (count // prompts)
        layouts["groups: one sample of each prompt in turn"] = rows % prompts
    for setting, groups in layouts.items():
        if not _same_partition(groups, case.batch.groups):
            yield Variant(setting, replace(case, batch=replace(case.batch, groups=groups)))


def _same_partition(one: Array, other: Array) -> bool:
    pairs = len(np.unique(np.stack([one, other]), axis=1).T)
    return pairs == len(np.unique(one)) == len(np.unique(other))


def _old_policy(case: Case) -> Iterator[Variant]:
    if case.batch.sampling_log_probs is not None:
        old = case.batch.sampling_log_probs
        yield Variant('trainer.old_log_probs = "rollout"', _with(case, old_log_probs=old))
    if case.batch.old_log_probs is not None:
        setting = "every ratio is 1: the old log-probs are the trained policy's own"
        yield Variant(setting, _with(case, old_log_probs=None))


def _shift_of(name: str) -> Callable[[Case], Iterator[Variant]]:
    """Returns the variants in which the log-probs of this name are those of the token before or after."""

    def variants(case: Case) -> Iterator[Variant]:
        if (values := getattr(case.batch, name)) is not None:
            for by, word in _SHIFTS:
                yield Variant(f"{name} is one token {word}", _with(case, **{name: _shifted(values, by)}))

    return variants


def _padding_of(name: str) -> Callable[[Case], Iterator[Variant]]:
    """Returns the variant in which the log-probs of this name are those of rows padded on the other side."""

    def variants(case: Case) -> Iterator[Variant]:
        if (values := getattr(case.batch, name)) is not None:
            other = _other_side(values, case.batch.mask)
            yield Variant(f"{name} is padded on the other side", _with(case, **{name: other}))

    return variants


def _with(case: Case, **arrays: Any) -> Case:
    return replace(case, batch=replace(case.batch, **arrays))


def _ratio_level(case: Case) -> Iterator[Variant]:
    yield from _of_type(case, "grpo" if case.type == "gspo" else "gspo")


def _kl_estimator(case: Case) -> Iterator[Variant]:
    if not isinstance(case.params, ObjectiveParams) or (term := case.params.kl.in_loss) is None:
        return
    for estimator in ("k1", "k2", "k3", "low_var_kl"):
        if estimator != term.type:
            yield _with_kl(case, term.model_copy(update={"type": estimator}), f"type = {as_toml(estimator)}")
    setting = f"unbiased = {as_toml(not term.unbiased)}"
    yield _with_kl(case, term.model_copy(update={"unbiased": not term.unbiased}), setting)


def _kl_weight(case: Case) -> Iterator[Variant]:
    if not isinstance(case.params, ObjectiveParams):
        return
    term = case.params.kl.in_loss
    if term is not None:
        yield _with_kl(case, None, "unset")
    if case.batch.reference_log_probs is None:
        return
    for coef in (0.001, 0.01, 0.02, 0.04, 0.05, 0.1):
        if term is None or coef != term.coef:
            other = KLTerm(type="k3", coef=coef) if term is None else term.model_copy(update={"coef": coef})
            yield _with_kl(case, other, f"coef = {coef}")


def _with_kl(case: Case, term: KLTerm | None, setting: str) -> Variant:
    section = case.params.kl.model_copy(update={"in_loss": term})  # type: ignore[attr-defined]
    name = "algorithm.kl.in_loss " if term is None else "algorithm.kl.in_loss."
    text = f"{name.strip()} is {setting}" if term is None else name + setting
    return Variant(text, replace(case, params=case.params.model_copy(update={"kl": section})))


def _clip(case: Case) -> Iterator[Variant]:
    if not hasattr(case.params, "clip_high"):
        return
    yield from _set(case, clip_high=None)
    for high in (0.2, 0.24, 0.28, 0.3):
        yield from _set(case, clip_high=high)
    for low in (0.1, 0.2, 0.3):
        yield from _set(case, clip=low)
        yield from _set(case, clip=low, clip_high=None)
    setting = "nothing is clipped"
    unbounded = {"clip": 1 - 1e-6, "clip_high": 1e30, "dual_clip": None}
    if unbounded.keys() <= type(case.params).model_fields.keys():
        yield Variant(setting, replace(case, params=case.params.model_copy(update=unbounded)))


def _dual_clip(case: Case) -> Iterator[Variant]:
    for bound in (None, 3.0, 10.0):
        yield from _set(case, dual_clip=bound)


def _correction(case: Case) -> Iterator[Variant]:
    yield from _set(case, correction=None)
    if case.batch.sampling_log_probs is not None:
        for correction in (Correction(), Correction(type="icepop")):
            for variant in _set(case, correction=correction):
                setting = f'algorithm.correction.type = "{correction.type}"'
                yield Variant(setting, variant.case)


def _reduction(case: Case) -> Iterator[Variant]:
    for reduction in ("per_sample_mean", "per_token", "dr_grpo"):
        if reduction != case.reduction:
            setting = f'trainer.reduction = "{reduction}"'
            yield Variant(setting, replace(case, reduction=reduction))


def _constant(case: Case) -> Iterator[Variant]:
    """Dr. GRPO's constant is the width of the padded batch, or the longest response."""
    if case.reduction == "dr_grpo":
        for length in sorted({case.batch.tokens.shape[1], int(case.batch.mask.sum(1).max())}):
            if length != case.max_response_tokens:
                setting = f"rollout.max_response_tokens = {length}"
                yield Variant(setting, replace(case, max_response_tokens=length))


def _micro_batches(case: Case) -> Iterator[Variant]:
    batches = case.batch.micro_batches
    if batches is not None and len(np.unique(batches)) > 1:
        setting = "the loss is reduced within each micro-batch, then averaged over micro-batches"
        yield Variant(setting, replace(case, by_micro_batch=not case.by_micro_batch))


def _without_end_token(mask: Array) -> Iterator[tuple[str, Array]]:
    last = mask * (np.cumsum(mask[:, ::-1], axis=1)[:, ::-1] == 1)
    yield "the end token is not in the mask", mask - last


def _shifted_mask(mask: Array) -> Iterator[tuple[str, Array]]:
    for by, word in _SHIFTS:
        yield f"the mask is one token {word}", _shifted(mask, by)


def _padded_mask(mask: Array) -> Iterator[tuple[str, Array]]:
    yield "the mask is padded on the other side", _other_side(mask, mask)


MaskChange = Callable[[Array], Iterator[tuple[str, Array]]]
"""Yields what the other trainer does, and the mask that it has then."""


def _claimed_mask(change: MaskChange) -> Callable[[Case], Iterator[Variant]]:
    """Returns the variants in which this mask is what should be in the dump."""

    def variants(case: Case) -> Iterator[Variant]:
        if (mask := case.claims.get("mask")) is not None:
            for setting, other in change(mask):
                yield _claim(case, setting, "mask", other)

    return variants


def _mask_in_loss(change: MaskChange) -> Callable[[Case], Iterator[Variant]]:
    """Returns the variants in which the loss has another mask than the dump."""

    def variants(case: Case) -> Iterator[Variant]:
        for setting, other in change(case.batch.mask):
            if other.any():
                yield Variant(f"in the loss, {setting}", _with(case, mask=other))

    return variants


def _temperature(case: Case) -> Iterator[Variant]:
    if "log_probs" in case.claims:
        for temperature, setting in _temperatures(case):
            yield _claim(case, setting, "log_probs", log_probs_of_logits(case.batch, temperature))


def _temperatures(case: Case) -> Iterator[tuple[float, str]]:
    if case.temperature != 1:
        yield 1.0, "rollout.temperature is not applied to the log-probs"
        yield case.temperature**2, "rollout.temperature is applied twice"


def _logits_shift(case: Case) -> Iterator[Variant]:
    if "log_probs" in case.claims and case.batch.logits is not None:
        for by, word in _SHIFTS:
            logits = np.roll(case.batch.logits, by, axis=1)
            values = log_probs_of_logits(replace(case.batch, logits=logits), case.temperature)
            yield _claim(
                case, f"the logits that log_probs come from are one token {word}", "log_probs", values
            )


def _claimed_old_policy(case: Case) -> Iterator[Variant]:
    if "old_log_probs" not in case.claims:
        return
    batch, old = case.batch, "old_log_probs"
    if batch.sampling_log_probs is not None:
        yield _claim(case, 'trainer.old_log_probs = "rollout"', old, batch.sampling_log_probs)
    if batch.logits is not None and len(batch.logits) == len(batch.tokens):
        for temperature, setting in _temperatures(case):
            values = log_probs_of_logits(batch, temperature)
            yield _claim(case, setting.replace("the log-probs", old), old, values)
    for by, word in _SHIFTS:
        yield _claim(case, f"{old} is one token {word}", old, _shifted(batch.log_probs, by))
    setting = f"{old} is padded on the other side"
    yield _claim(case, setting, old, _other_side(batch.log_probs, batch.mask))


def _stale(case: Case) -> Iterator[Variant]:
    if "old_log_probs" in case.claims and case.batch.old_log_probs is not None:
        setting = "batch.on_policy = false: old_log_probs is of other weights"
        yield _claim(case, setting, "old_log_probs", case.batch.old_log_probs)


def _claim(case: Case, setting: str, name: str, values: Array) -> Variant:
    return Variant(setting, replace(case, claims={**case.claims, name: values}))


_SHIFTS = ((1, "late"), (-1, "early"))


def _shifted(values: Array, by: int) -> Array:
    """Returns `[B, R]` values one token later or earlier, with 0 at the free end."""
    result = np.roll(values, by, axis=1)
    result[:, 0 if by > 0 else -1] = 0
    return result


def _other_side(values: Array, mask: Array) -> Array:
    """Returns `[B, R]` values moved to the other end of their rows; `mask` says where responses are."""
    trained = mask > 0
    length = mask.shape[1]
    starts = np.where(trained.any(1), trained.argmax(1), 0)
    ends = np.where(trained.any(1), length - trained[:, ::-1].argmax(1), length)
    moves = np.where(ends < length, length - ends, -starts)
    columns = (np.arange(length) - moves[:, None]) % length
    return np.take_along_axis(values, columns, axis=1)


NEIGHBOURS: Sequence[Neighbour] = (
    Neighbour("end_token", "mask", _claimed_mask(_without_end_token)),
    Neighbour("mask_shift", "mask", _claimed_mask(_shifted_mask)),
    Neighbour("mask_padding", "mask", _claimed_mask(_padded_mask)),
    Neighbour("temperature", "log_probs", _temperature),
    Neighbour("logits_shift", "log_probs", _logits_shift),
    Neighbour("old_log_probs", "old_log_probs", _claimed_old_policy),
    Neighbour("stale", "old_log_probs", _stale),
    Neighbour("normalize_std", "advantages", _normalize_std),
    Neighbour("std_divisor", "advantages", _divisor),
    Neighbour("std_epsilon", "advantages", _epsilon),
    Neighbour("subtract_mean", "advantages", _subtract_mean),
    Neighbour("normalize_advantages", "advantages", _whiten),
    Neighbour("leave_one_out", "advantages", _leave_one_out),
    Neighbour("groups", "advantages", _groups),
    Neighbour("old_policy", "ratios", _old_policy),
    Neighbour("ratio_level", "ratios", _ratio_level),
    Neighbour("old_shift", "ratios", _shift_of("old_log_probs")),
    Neighbour("old_padding", "ratios", _padding_of("old_log_probs")),
    Neighbour("kl_estimator", "kl", _kl_estimator),
    Neighbour("reference_shift", "kl", _shift_of("reference_log_probs")),
    Neighbour("reference_padding", "kl", _padding_of("reference_log_probs")),
    Neighbour("clip", "token_losses", _clip),
    Neighbour("dual_clip", "token_losses", _dual_clip),
    Neighbour("kl_coef", "token_losses", _kl_weight),
    Neighbour("correction", "token_losses", _correction),
    Neighbour("reduction", "loss", _reduction),
    Neighbour("max_response_tokens", "loss", _constant),
    Neighbour("micro_batches", "loss", _micro_batches),
    Neighbour("end_token", "loss", _mask_in_loss(_without_end_token)),
    Neighbour("mask_shift", "loss", _mask_in_loss(_shifted_mask)),
    Neighbour("mask_padding", "loss", _mask_in_loss(_padded_mask)),
)
"""All neighbours, in the order of the terms that they act on, the likeliest first."""
