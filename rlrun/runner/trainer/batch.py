"""One micro-batch as tensors: documents one after the other, response tokens picked out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.carriers import TrainSequence
from rlrun.runner.trainer.attention import Documents


@dataclass(frozen=True, slots=True)
class Pack:
    """T tokens of B documents, R of them response tokens, concatenated in the order of the documents."""

    tokens: torch.Tensor
    """`[1, T]` int64."""
    positions: torch.Tensor
    """`[T]` int64: place within the document."""
    documents: Documents
    rows: torch.Tensor
    """`[R]` int64: which packed position predicts each response token."""
    targets: torch.Tensor
    """`[R]` int64: the response tokens."""
    response_lengths: tuple[int, ...]
    """`[B]`"""


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


def make_pack(sequences: Sequence[TrainSequence], multiple: int, device: torch.device) -> Pack:
    """Pack sequences; the number of tokens is filled up to a multiple of `multiple` with a document of its
    own.

    A pack without sequences has one such document of at least one token: ranks that have nothing to do keep
    pace.
    """
    lengths = [len(sequence.tokens) for sequence in sequences]
    prompts = [sequence.prompt_length for sequence in sequences]
    total = sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
    rows = [
        np.arange(start + prompt - 1, start + length - 1)
        for start, prompt, length in zip(starts, prompts, lengths, strict=True)
    ]
    filling = -total % multiple or (0 if lengths else multiple)
    parts = [sequence.tokens for sequence in sequences]
    if filling:
        parts.append(np.zeros(filling, np.int32))
        lengths.append(filling)
    tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
    row_index = torch.from_numpy(_joined(rows, np.int64)).to(device)
    return Pack(
        tokens=tokens[None],
        positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device),
        documents=Documents.of(lengths, device),
        rows=row_index,
        targets=tokens[row_index + 1],
        response_lengths=tuple(len(row) for row in rows),
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
