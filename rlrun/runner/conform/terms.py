"""Computes the terms of a batch's loss with rlrun's own code: the algorithm's plugin, the trainer's token
losses and its reduction.

    rewards, groups ─▶ advantages ┐
    log_probs, old_log_probs ─▶ ratios ┼▶ token_losses ─▶ loss ─▶ gradients
    log_probs, reference_log_probs ─▶ kl ┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from rlrun.plugins import registry
from rlrun.plugins.algorithms.kl import KLSection
from rlrun.plugins.algorithms.objective import ClipParams, ObjectiveParams
from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.types import Group, LossOutputs, Prompt, Row, Sample, Status
from rlrun.runner.batches.reduction import Reduction, token_scales
from rlrun.runner.batches.sequences import to_sequences, with_advantages, with_arrays
from rlrun.runner.conform.dump import RESULTS, Array, Batch, Dump
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.errors import DumpError

if TYPE_CHECKING:
    from rlrun.runner.trainer.passes.packed_batch import LossBatch

CLAIMS = ("mask", "log_probs", "old_log_probs")
"""Inputs that follow from other inputs, where the dump says enough: they are compared first."""
TERMS = (*CLAIMS, *RESULTS)
"""All terms, in the order in which they are computed."""
_NO_UPPER_BOUND = 1e30


@dataclass(frozen=True, slots=True)
class Case:
    """A batch and the settings that rlrun computes it with."""

    type: str
    """Name of the algorithm."""
    params: BaseModel
    """The algorithm's parameters."""
    reduction: Reduction
    max_response_tokens: int
    temperature: float
    batch: Batch
    claims: Mapping[str, Array] = field(default_factory=dict)
    """What the inputs of `CLAIMS` should be; those that the dump says nothing about are missing."""
    advantages: Array | None = None
    """`[B, R]` advantages to use in place of the algorithm's."""
    by_micro_batch: bool = False
    """The loss is the mean of the losses of the micro-batches."""


class NotComputed(Exception):
    """rlrun has no such term for these settings; the message says why."""


def first_case(dump: Dump) -> Case:
    """Returns the case that the dump's settings describe. Raises DumpError for settings that rlrun cannot
    compute.
    """
    settings, batch = dump.settings, dump.batch
    section = settings.algorithm
    try:
        params = registry.checked_params("algorithms", section.type, section.params)
    except registry.PluginError as error:
        raise DumpError(f"{dump.path}: settings: algorithm: {error}") from error
    case = Case(
        type=section.type,
        params=params,
        reduction=settings.trainer.reduction,
        max_response_tokens=settings.rollout.max_response_tokens or batch.tokens.shape[1],
        temperature=settings.rollout.temperature,
        batch=batch,
    )
    try:
        _check_needs(case)
    except NotComputed as reason:
        raise DumpError(f"{dump.path}: {reason}") from reason
    return replace(case, claims=_claims(dump, case))


def _claims(dump: Dump, case: Case) -> dict[str, Array]:
    batch, settings = dump.batch, dump.settings.batch
    claims = {}
    if settings.end_token_ids:
        claims["mask"] = mask_of_responses(batch, settings.end_token_ids)
    if batch.logits is not None:
        claims["log_probs"] = log_probs_of_logits(batch, case.temperature)
    if settings.on_policy and batch.old_log_probs is not None:
        claims["old_log_probs"] = batch.log_probs
    return claims


def mask_of_responses(batch: Batch, end_token_ids: Sequence[int]) -> Array:
    """Returns `[B, R]` 1 up to the first end token of a response, that one included.

    A sample of which no token is trained has been masked on purpose, and keeps its mask.
    """
    is_end = np.isin(batch.tokens, end_token_ids)
    earlier_ends: Array = np.cumsum(is_end, axis=1) - is_end
    mask: Array = (earlier_ends == 0) * batch.mask.any(axis=1, keepdims=True)
    return mask.astype(np.float32)


def log_probs_of_logits(batch: Batch, temperature: float) -> Array:
    """Returns `[b, R]` the log-probs of the tokens by the trainer's softmax."""
    import torch

    from rlrun.runner.trainer.ops.softmax import log_softmax

    assert batch.logits is not None
    rows, length, vocabulary = batch.logits.shape
    trained = batch.mask[:rows].reshape(-1) > 0
    logits = torch.from_numpy(batch.logits.reshape(-1, vocabulary)[trained])
    result = np.zeros(rows * length, np.float32)
    targets = torch.from_numpy(batch.tokens[:rows].reshape(-1)[trained])
    result[trained] = log_softmax(logits, targets, temperature)[0].numpy()
    return result.reshape(rows, length)


def _check_needs(case: Case) -> None:
    """Raises NotComputed if the batch lacks what the algorithm needs."""
    needs, batch = registry.load("algorithms", case.type)(case.params).needs, case.batch
    of_step = needs.pairs or needs.greedy_reward or needs.state or needs.policy_squared_probs
    if not needs.rollout or needs.critic or needs.teacher or of_step:
        raise NotComputed(
            f'the algorithm "{case.type}" with these parameters needs a critic, a teacher, a state, pairs, '
            "greedy responses or demonstrations, which a dump does not hold"
        )
    off_policy = isinstance(case.params, ObjectiveParams) and case.params.opsm is not None
    required = {
        "reference_log_probs": needs.reference,
        "entropies": needs.entropy_grad or needs.policy_entropies,
        "sampling_log_probs": needs.trainer_log_probs or needs.engine_ratio or off_policy,
    }
    for name, needed in required.items():
        if needed and getattr(batch, name) is None:
            raise NotComputed(f'the algorithm "{case.type}" with these parameters needs the array {name}')


class Computed:
    """The terms of one case. Raises NotComputed if its batch lacks what the algorithm needs."""

    def __init__(self, case: Case) -> None:
        _check_needs(case)
        self._case = case
        _, numbers = np.unique(case.batch.groups, return_inverse=True)
        self._order = np.argsort(numbers, kind="stable")
        """The row of each sample: samples are computed group by group."""
        self._numbers = numbers

    def term(self, name: str) -> Array:
        """Returns a term in the order of the dump's rows. Raises NotComputed if rlrun has none."""
        if name in CLAIMS:
            if name not in self._case.claims:
                raise NotComputed(_UNCLAIMED[name])
            return self._case.claims[name]
        computed: Array = getattr(self, f"_{name}")
        return computed

    @cached_property
    def loss_mass(self) -> float:
        """The sum of the absolute losses of tokens, which the rounding error of the loss is in proportion
        to.
        """
        losses, batch, _ = self._outputs
        return float((losses.loss.detach().abs() * batch.weights).sum())

    @cached_property
    def _algorithm(self) -> Algorithm:
        algorithm: Algorithm = registry.load("algorithms", self._case.type)(self._case.params)
        return algorithm

    @cached_property
    def _groups(self) -> list[Group]:
        groups: dict[int, Group] = {}
        for row in self._order.tolist():
            number = int(self._numbers[row])
            prompt = Prompt(Row(id=str(number), prompt=""), index=number, tokens=np.zeros(1, np.int32))
            group = groups.setdefault(number, Group(prompt, []))
            group.samples.append(_sample(self._case.batch, row, prompt))
        return list(groups.values())

    @cached_property
    def _sequences(self) -> list[TrainSequence]:
        batch = self._case.batch
        arrays = {
            name: [values[row] for row in self._order]
            for name in ("old_log_probs", "reference_log_probs")
            if (values := getattr(batch, name)) is not None
        }
        sequences = (
            with_arrays(to_sequences(self._groups), **arrays) if arrays else to_sequences(self._groups)
        )
        sequences = with_advantages(sequences, self._groups, self._algorithm)
        if (given := self._case.advantages) is None:
            return sequences
        return with_arrays(sequences, advantages=[given[row] for row in self._order])

    @cached_property
    def _advantages(self) -> Array:
        return self._in_rows([sequence.advantages for sequence in self._sequences])

    @cached_property
    def _ratios(self) -> Array:
        """The token loss for the advantage 1 without bounds and further terms is minus the ratio."""
        params = self._case.params
        if not isinstance(params, ClipParams) or self._algorithm.needs.marks:
            raise NotComputed(f'the loss of "{self._case.type}" is not a clipped ratio')
        plain = params.model_copy(
            update={
                **dict.fromkeys(("adaptive_entropy", "correction", "opsm", "dual_clip")),
                **dict.fromkeys(("entropy_coef", "log_ratio_coef"), 0.0),
                "clip_high": _NO_UPPER_BOUND,
                "kl": KLSection(),
            }
        )
        algorithm = registry.load("algorithms", self._case.type)(plain)
        ones = [np.ones_like(sequence.advantages) for sequence in self._sequences]
        outputs, _, _ = self._evaluate(algorithm, with_arrays(self._sequences, advantages=ones))
        return self._in_rows(-outputs.loss.detach().numpy())

    @cached_property
    def _kl(self) -> Array:
        outputs, _, _ = self._outputs
        if "kl_loss" not in outputs.metrics:
            raise NotComputed("algorithm.kl.in_loss is not set")
        return self._in_rows(outputs.metrics["kl_loss"].numpy())

    @cached_property
    def _token_losses(self) -> Array:
        outputs, _, _ = self._outputs
        return self._in_rows(outputs.loss.detach().numpy())

    @cached_property
    def _loss(self) -> Array:
        outputs, batch, _ = self._outputs
        return np.asarray(float((outputs.loss.detach() * batch.weights).sum()))

    @cached_property
    def _gradients(self) -> Array:
        outputs, batch, log_probs = self._outputs
        (outputs.loss * batch.weights).sum().backward(retain_graph=True)
        return self._in_rows(log_probs.grad.numpy())

    @cached_property
    def _outputs(self) -> tuple[LossOutputs, "LossBatch", Any]:
        return self._evaluate(self._algorithm, self._sequences)

    def _evaluate(
        self, algorithm: Algorithm, sequences: Sequence[TrainSequence]
    ) -> tuple[LossOutputs, "LossBatch", Any]:
        """Returns the token losses, their batch, and the log-probs, which have the gradient."""
        import torch

        from rlrun.runner.trainer.passes.packed_batch import make_loss_batch
        from rlrun.runner.trainer.passes.token_losses import token_losses

        batch = make_loss_batch(sequences, self._scales(), False, torch.device("cpu"))
        log_probs = torch.from_numpy(self._case.batch.log_probs[self._order].reshape(-1)).requires_grad_()
        entropies = self._case.batch.entropies
        entropy = torch.zeros(len(log_probs))
        if entropies is not None:
            entropy = torch.from_numpy(entropies[self._order].reshape(-1))
        old = log_probs.detach() if batch.old_log_probs is None else batch.old_log_probs
        return token_losses(algorithm, batch, log_probs, entropy, old, step_values={}), batch, log_probs

    def _scales(self) -> list[float]:
        """Returns the weight of each sequence's tokens, by the trainer's reduction."""
        case, count = self._case, len(self._order)
        micro_batches = np.zeros(count, np.int64)
        if case.by_micro_batch:
            assert case.batch.micro_batches is not None
            micro_batches = case.batch.micro_batches[self._order]
        scales, masks = np.zeros(count), case.batch.mask[self._order]
        names = np.unique(micro_batches)
        for name in names:
            [members] = np.nonzero(micro_batches == name)
            own = token_scales(
                list(masks[members]), list(map(str, members)), case.reduction, case.max_response_tokens
            )
            scales[members] = own / len(names)
        return list(scales)

    def _in_rows(self, values: Any) -> Array:
        """Returns `[B, R]` values in the order of the dump, from those in the order of the groups."""
        shape = self._case.batch.tokens.shape
        rows = np.empty(shape, np.float32)
        rows[self._order] = np.asarray(values).reshape(shape)
        return rows


_UNCLAIMED = MappingProxyType(
    {
        "mask": "batch.end_token_ids is not set",
        "log_probs": "the dump has no logits",
        "old_log_probs": "batch.on_policy is not set",
    }
)


def _sample(batch: Batch, row: int, prompt: Prompt) -> Sample:
    made_by = next(
        values
        for values in (batch.sampling_log_probs, batch.old_log_probs, batch.log_probs)
        if values is not None
    )
    old = batch.log_probs if batch.old_log_probs is None else batch.old_log_probs
    return Sample(
        id=str(row),
        prompt=prompt,
        tokens=batch.tokens[row].astype(np.int32),
        log_probs=made_by[row],
        loss_mask=batch.mask[row],
        versions=(),
        status=Status.COMPLETED,
        text="",
        reward=float(batch.rewards[row]),
        policy_log_probs=old[row],
        reference_log_probs=None if batch.reference_log_probs is None else batch.reference_log_probs[row],
        policy_entropies=None if batch.entropies is None else batch.entropies[row],
    )
