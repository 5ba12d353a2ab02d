"""One micro-batch as tensors: documents one after the other, response tokens picked out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.masked_logits import Support
from rlrun.runner.trainer.passes.context import WHOLE, ContextPart, cut_documents

FILLER = 64
"""Tokens of a document that fills up a pack: short, as attention costs the square."""


@dataclass(frozen=True, slots=True)
class Pack:
    """T tokens of B documents with R response tokens, concatenated in the order of the documents.

    A context-parallel rank has T' of the tokens, among them the ones that predict R' response tokens.
    """

    tokens: torch.Tensor
    """`[1, T']` int64."""
    positions: torch.Tensor
    """`[T']` int64: place within the document."""
    longest: int
    """Tokens of the longest document."""
    documents: Documents | CutDocuments
    rows: torch.Tensor
    """`[R']` int64: which of the rank's positions predicts each response token."""
    targets: torch.Tensor
    """`[R']` int64: the response tokens."""
    response_lengths: tuple[int, ...]
    """`[B]`; they sum to R."""
    found: torch.Tensor | None
    """`[R']` int64: which of the R response tokens they are; None: all of them."""
    filling: int
    """How many tokens at the end of the T fill it up."""
    experts: torch.Tensor | None = None
    """`[T', layers × K]` int16: what each token is routed to; None: routers decide."""
    support: Support | None = None
    """The tokens that the softmax at each of the R' rows runs over; None: the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class LossBatch:
    """What the loss needs of the response tokens of a pack, `[R]` float32 unless said otherwise."""

    mask: torch.Tensor
    weights: torch.Tensor
    """Mask times the sequence's share in the step's loss."""
    advantages: torch.Tensor
    rollout_log_probs: torch.Tensor
    old_log_probs: torch.Tensor | None
    reference_log_probs: torch.Tensor | None
    sample: torch.Tensor
    """int64: which document a token belongs to."""
    num_samples: int


def make_pack(
    sequences: Sequence[TrainSequence],
    multiple: int,
    device: torch.device,
    *,
    size: int = 0,
    part: ContextPart = WHOLE,
    ends: bool = False,
) -> Pack:
    """Pack sequences, and take this rank's part.

    With `ends` a response has one row more: the position of its last token, whose target means nothing. Such
    rows are for a head without a softmax, which has no use for sampling masks.

    The number of tokens is filled up to a multiple of `multiple`, and to at least `size`, with documents of
    their own. A pack without sequences has at least one of them: ranks that have nothing to do keep pace.
    """
    lengths = [len(sequence.tokens) for sequence in sequences]
    prompts = [sequence.prompt_length for sequence in sequences]
    total = packed_size(lengths, multiple, size)
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
    rows = [np.zeros(0, np.int64)] + [
        np.arange(start + prompt - 1, start + length - 1 + ends)
        for start, prompt, length in zip(starts, prompts, lengths, strict=True)
    ]
    filling = total - sum(lengths)
    parts = [sequence.tokens.astype(np.int64) for sequence in sequences]
    tokens = np.concatenate([*parts, np.zeros(filling, np.int64)])
    lengths += [min(FILLER, filling - start) for start in range(0, filling, FILLER)]
    positions = np.concatenate([np.arange(length) for length in lengths])
    responses = tuple(len(row) for row in rows[1:])
    pack = _take(part, tokens, positions, lengths, np.concatenate(rows), responses, filling, device)
    mask = joined_masks([one.sampling_mask for one in sequences], responses) if not ends else None
    if mask is not None:
        pack = replace(pack, support=_support(mask, pack.found, device))
    experts = _experts(sequences, filling)
    if experts is None:
        return pack
    mine = experts if part.size == 1 else experts[part.tokens(len(tokens))]
    return replace(pack, experts=torch.from_numpy(mine).to(device))


def _support(mask: SamplingMask, found: torch.Tensor | None, device: torch.device) -> Support:
    """Of the response tokens that a rank has the rows of."""
    return Support.of(mask if found is None else mask.take(found.cpu().numpy()), device)


def _experts(sequences: Sequence[TrainSequence], filling: int) -> NDArray[np.int16] | None:
    """`[T, layers × K]`; those of fillers are the router's own."""
    given = [sequence.experts for sequence in sequences if sequence.experts is not None]
    if not given:
        return None
    assert len(given) == len(sequences), "experts for some sequences and not for others"
    return np.concatenate([*given, np.full((filling, given[0].shape[1]), -1, np.int16)])


def packed_size(lengths: Sequence[int], multiple: int, size: int = 0) -> int:
    """Tokens of a pack of documents of these lengths."""
    return -(-max(sum(lengths), size, 1) // multiple) * multiple


def _take(  # noqa: PLR0917
    part: ContextPart,
    tokens: NDArray[np.int64],
    positions: NDArray[np.int64],
    lengths: list[int],
    rows: NDArray[np.int64],
    response_lengths: tuple[int, ...],
    filling: int,
    device: torch.device,
) -> Pack:
    """A rank's part of a pack, on its device."""

    def placed(array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    documents: Documents | CutDocuments = Documents.of(lengths, device)
    targets, found = np.append(tokens, 0)[rows + 1], None
    if part.size > 1:
        mine = part.tokens(len(tokens))
        place = np.full(len(tokens), -1)
        place[mine] = np.arange(len(mine))
        [held] = np.nonzero(place[rows] >= 0)
        documents = cut_documents(lengths, part, device)
        tokens, positions, rows, targets = tokens[mine], positions[mine], place[rows[held]], targets[held]
        found = placed(held)
    return Pack(
        tokens=placed(tokens)[None],
        positions=placed(positions),
        longest=max(lengths),
        documents=documents,
        rows=placed(rows),
        targets=placed(targets),
        response_lengths=response_lengths,
        found=found,
        filling=filling,
    )


def make_loss_batch(
    sequences: Sequence[TrainSequence], scales: Sequence[float], old_is_rollout: bool, device: torch.device
) -> LossBatch:
    """The loss's side of `make_pack(sequences, …)`; `scales` is each sequence's share (TrainStep.scale)."""

    def gathered(arrays: Sequence[NDArray[np.float32]]) -> torch.Tensor:
        return torch.from_numpy(_joined(arrays, np.float32)).to(device)

    responses = [len(sequence.loss_mask) for sequence in sequences]
    mask = gathered([sequence.loss_mask for sequence in sequences])
    sample = torch.from_numpy(np.repeat(np.arange(len(sequences)), responses)).to(device)
    shares = torch.tensor(list(scales), dtype=torch.float32, device=device)
    rollout = gathered([sequence.rollout_log_probs for sequence in sequences])
    old = [sequence.old_log_probs for sequence in sequences if sequence.old_log_probs is not None]
    reference = [
        sequence.reference_log_probs for sequence in sequences if sequence.reference_log_probs is not None
    ]
    assert len(old) in (0, len(sequences)) and len(reference) in (0, len(sequences))
    return LossBatch(
        mask=mask,
        weights=mask * shares[sample] if len(sequences) else mask,
        advantages=gathered([sequence.advantages for sequence in sequences]),
        rollout_log_probs=rollout,
        old_log_probs=gathered(old) if old else rollout if old_is_rollout else None,
        reference_log_probs=gathered(reference) if reference else None,
        sample=sample,
        num_samples=len(sequences),
    )


def _joined(arrays: Sequence[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([np.asarray(array, dtype) for array in arrays]) if arrays else np.zeros(0, dtype)
