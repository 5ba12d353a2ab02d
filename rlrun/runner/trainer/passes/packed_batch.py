"""One micro-batch as tensors: concatenated documents, and the rows that predict response tokens.

A document is one sequence, or a tree of sequences that share prefixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.vision import VisionTower, image_positions
from rlrun.plugins.sampling_mask import SamplingMask, joined_masks
from rlrun.runner.batches.prefixes import Forest, forest_size, separate_forest, shared_forest
from rlrun.runner.contracts.carriers import PER_TOKEN, ImagePatches, TrainSequence
from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.masked_logits import Support
from rlrun.runner.trainer.model.top_tokens import TopTokens
from rlrun.runner.trainer.model.vision_tower import PackedImages
from rlrun.runner.trainer.passes.context import WHOLE, ContextPart, cut_documents
from rlrun.runner.trainer.transfers import to_device

FILLER = 64
"""The length of the documents that fill up a pack: short, because attention costs the square of it."""


@dataclass(frozen=True, slots=True)
class Pack:
    """T tokens of B sequences with R response tokens, concatenated in the order of the documents.

    A context-parallel rank has T' of the tokens, which predict R' of the response tokens.
    """

    tokens: torch.Tensor
    """`[1, T']` int64."""
    positions: torch.Tensor
    """`[T']` int64: position within the document; with images `[3, T]`, in time, height and width."""
    longest: int
    """The length of the longest document."""
    documents: Documents | CutDocuments
    rows: torch.Tensor
    """`[R']` int64: which of the rank's positions predicts each response token."""
    targets: torch.Tensor
    """`[R']` int64: the response tokens."""
    response_lengths: tuple[int, ...]
    """`[B]`; they sum to R."""
    own_responses: torch.Tensor | None
    """`[R']` int64: which of the R response tokens this rank predicts; None: all of them."""
    filling: int
    """The number of tokens at the end of the T that only fill up the pack."""
    experts: torch.Tensor | None = None
    """`[T', layers × K]` int16: the experts that each token is routed to; None: routers decide."""
    support: Support | None = None
    """The tokens that the softmax at each of the R' rows runs over; None: the whole vocabulary."""
    images: PackedImages | None = None
    """The images of the documents; None without images."""
    teacher: TopTokens | None = None
    """The teacher's most probable tokens at each of the R' rows; None: the sequences have none."""
    paths: tuple[NDArray[np.int64], ...] | None = None
    """`[B]` the places in the pack of each sequence's tokens, if sequences share prefixes. None: they follow
    each other."""


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The inputs of the loss for the response tokens of a pack, `[R]` float32 unless noted.

    Fields that have the name of a per-token array of `TrainSequence` hold that array.
    """

    loss_mask: torch.Tensor
    advantages: torch.Tensor
    rollout_log_probs: torch.Tensor
    old_log_probs: torch.Tensor | None
    proximal_share: torch.Tensor | None
    reference_log_probs: torch.Tensor | None
    marks: torch.Tensor | None
    distilled: torch.Tensor | None
    current: torch.Tensor | None
    cross_entropy: torch.Tensor | None
    """Times the sequence's weight in the step's loss."""
    kl_weights: torch.Tensor | None
    weights: torch.Tensor
    """The mask times the sequence's weight in the step's loss."""
    sample: torch.Tensor
    """int64: the document that a token belongs to."""
    num_samples: int


_ARRAYS = tuple(field.name for field in fields(LossBatch) if field.name in PER_TOKEN)
"""The per-token arrays that the loss reads, the mask first."""


def make_pack(
    sequences: Sequence[TrainSequence],
    multiple: int,
    device: torch.device,
    *,
    size: int = 0,
    part: ContextPart = WHOLE,
    ends: bool = False,
    tower: VisionTower | None = None,
    share: bool = False,
) -> Pack:
    """Packs sequences and returns this rank's part.

    With `ends` a response has one row more: the position of its last token, whose target is meaningless. Such
    rows are for a value head, which has no softmax and so ignores sampling masks.

    `tower`: the model's vision tower. ValueError for sequences with images if it has none.

    `share`: prefixes that sequences share are packed once. Where they share none, the pack is the same as
    without it.

    The number of tokens is filled up to a multiple of `multiple`, and to at least `size`, with separate
    documents. A pack without sequences has at least one of them: a rank without work must still take part in
    the collectives of every micro-batch.
    """
    assert not (share and part.size > 1), "the rules refuse context parallelism with shared prefixes"
    token_lists = [sequence.tokens for sequence in sequences]
    share = share and forest_size(token_lists) < sum(map(len, token_lists))
    forest = shared_forest(token_lists) if share else separate_forest(token_lists)
    filling = packed_size(len(forest.tokens), multiple, size) - len(forest.tokens)
    full = _filled(forest, filling)
    rows, targets = _predictions(sequences, forest, ends)
    responses = tuple(len(sequence.loss_mask) + ends for sequence in sequences)
    mask = joined_masks([one.sampling_mask for one in sequences], responses) if not ends else None
    pack = _take(part, full, rows, targets, responses, filling, mask, device)
    if not ends:
        pack = replace(pack, teacher=_teacher(sequences, pack.own_responses, device))
    if share:
        pack = replace(pack, documents=Documents.of(list(full.trees), device, full.ends), paths=forest.paths)
    if any(sequence.images for sequence in sequences):
        assert not share, "the rules refuse images with shared prefixes"
        positions = _document_positions(sequences, full.trees, tower)
        images = _pack_images(sequences, tower, device)
        pack = replace(pack, positions=to_device(positions, device), images=images)
    experts = _experts(sequences, forest, filling)
    if experts is None:
        return pack
    mine = experts if part.size == 1 else experts[part.tokens(len(full.tokens))]
    return replace(pack, experts=to_device(mine, device))


def _filled(forest: Forest, filling: int) -> Forest:
    """Returns the forest with short documents of zeros at its end, `filling` tokens in all."""
    lengths = [min(FILLER, filling - start) for start in range(0, filling, FILLER)]
    stops = len(forest.tokens) + np.cumsum(lengths, dtype=np.int64)
    return Forest(
        tokens=np.concatenate([forest.tokens, np.zeros(filling, np.int64)]),
        positions=np.concatenate([forest.positions, *(np.arange(length) for length in lengths)]),
        ends=np.concatenate([forest.ends, np.repeat(stops, lengths).astype(np.int32)]),
        trees=(*forest.trees, *lengths),
        paths=forest.paths,
    )


def _predictions(
    sequences: Sequence[TrainSequence], forest: Forest, ends: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns `[R]` the places in the pack that predict response tokens, and these tokens."""
    rows, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for sequence, path in zip(sequences, forest.paths, strict=True):
        rows.append(path[sequence.prompt_length - 1 : len(path) - 1 + ends])
        targets.append(np.append(sequence.tokens, 0)[sequence.prompt_length : len(path) + ends])
    return np.concatenate(rows), np.concatenate(targets).astype(np.int64)


def _teacher(
    sequences: Sequence[TrainSequence], own_responses: torch.Tensor | None, device: torch.device
) -> TopTokens | None:
    """Returns the teacher's most probable tokens for the response tokens that this rank predicts."""
    ids = [one.teacher_top_ids for one in sequences if one.teacher_top_ids is not None]
    log_probs = [one.teacher_top_log_probs for one in sequences if one.teacher_top_log_probs is not None]
    if not ids:
        return None
    assert len(ids) == len(log_probs) == len(sequences), "a teacher's tokens for some sequences only"
    host_ids, host_log_probs = np.concatenate(ids), np.concatenate(log_probs)
    tokens = TopTokens(to_device(host_ids, device).long(), to_device(host_log_probs, device))
    return tokens if own_responses is None else tokens.take(own_responses)


def _experts(sequences: Sequence[TrainSequence], forest: Forest, filling: int) -> NDArray[np.int16] | None:
    """Returns `[T, layers × K]`; -1 lets the router decide for filling tokens."""
    experts = [sequence.experts for sequence in sequences if sequence.experts is not None]
    if not experts:
        return None
    assert len(experts) == len(sequences), "experts for some sequences and not for others"
    table = np.full((len(forest.tokens) + filling, experts[0].shape[1]), -1, np.int16)
    for path, own in zip(forest.paths, experts, strict=True):
        table[path] = own
    return table


def packed_size(tokens: int, multiple: int, size: int = 0) -> int:
    """Returns the number of tokens of a pack with `tokens` tokens of sequences."""
    return -(-max(tokens, size, 1) // multiple) * multiple


def common_size(batches: Sequence[Sequence[TrainSequence]], multiple: int, *, share: bool) -> int:
    """Returns the number of tokens of the largest of the micro-batches' packs."""
    token_lists = [[sequence.tokens for sequence in sequences] for sequences in batches]
    tokens = [forest_size(token_list) if share else sum(map(len, token_list)) for token_list in token_lists]
    return packed_size(max(tokens, default=0), multiple)


def _take(  # noqa: PLR0917
    part: ContextPart,
    forest: Forest,
    rows: NDArray[np.int64],
    targets: NDArray[np.int64],
    response_lengths: tuple[int, ...],
    filling: int,
    mask: SamplingMask | None,
    device: torch.device,
) -> Pack:
    """Returns a rank's part of a pack, on its device."""
    tokens, positions, lengths = forest.tokens, forest.positions, list(forest.trees)
    whole = Documents.of(lengths, device)
    documents: Documents | CutDocuments = whole
    longest, own_responses = 1 + int(positions.max()), None
    if part.size > 1:
        part_tokens = part.tokens(len(tokens))
        local_index = np.full(len(tokens), -1)  # of a token of the pack in this rank's part
        local_index[part_tokens] = np.arange(len(part_tokens))
        [predicted] = np.nonzero(local_index[rows] >= 0)
        documents = cut_documents(whole, part, device)
        tokens, positions, targets = tokens[part_tokens], positions[part_tokens], targets[predicted]
        rows = local_index[rows[predicted]]
        mask = None if mask is None else mask.take(predicted)
        own_responses = to_device(predicted, device)
    return Pack(
        tokens=to_device(tokens, device)[None],
        positions=to_device(positions, device),
        longest=longest,
        documents=documents,
        rows=to_device(rows, device),
        targets=to_device(targets, device),
        response_lengths=response_lengths,
        own_responses=own_responses,
        filling=filling,
        support=None if mask is None else Support.from_mask(mask, device),
    )


def make_loss_batch(
    sequences: Sequence[TrainSequence], scales: Sequence[float], old_is_rollout: bool, device: torch.device
) -> LossBatch:
    """Returns the loss's inputs for `make_pack(sequences, …)`; `scales` is TrainStep.scale per sequence."""
    arrays = {
        name: [value for sequence in sequences if (value := getattr(sequence, name)) is not None]
        for name in _ARRAYS
    }
    assert all(len(values) in (0, len(sequences)) for values in arrays.values())
    # without sequences every array has its 0 values
    names = [name for name in _ARRAYS if len(arrays[name]) == len(sequences)]
    lengths = [len(sequence.loss_mask) for sequence in sequences]
    table = np.empty((len(names) + 1, sum(lengths)), np.float32)  # one table is one copy
    for row, name in zip(table, names, strict=False):
        np.concatenate([row[:0], *arrays[name]], out=row, casting="same_kind")
    scale_of_token = np.repeat(np.asarray(scales, np.float32), lengths)
    np.multiply(table[0], scale_of_token, out=table[-1])
    if "cross_entropy" in names:
        table[names.index("cross_entropy")] *= scale_of_token
    *values, weights = to_device(table, device).unbind()
    tensors: dict[str, Any] = dict.fromkeys(_ARRAYS) | dict(zip(names, values, strict=True))
    if tensors["old_log_probs"] is None and old_is_rollout:
        tensors["old_log_probs"] = tensors["rollout_log_probs"]
    return LossBatch(
        **tensors,
        weights=weights,
        sample=to_device(np.repeat(np.arange(len(sequences)), lengths), device),
        num_samples=len(sequences),
    )


def _pack_images(
    sequences: Sequence[TrainSequence], tower: VisionTower | None, device: torch.device
) -> PackedImages:
    """Returns the images of packed sequences. Raises ValueError if the model has no tower for them."""
    tower = _checked(tower)
    distinct: dict[tuple[str, tuple[int, int, int]], ImagePatches] = {}
    for sequence in sequences:
        for image in sequence.images:
            distinct.setdefault((image.digest, image.grid), image)
    ends = np.cumsum([tower.num_tokens(grid) for _, grid in distinct])
    ends_by_image = dict(zip(distinct, ends.tolist(), strict=True))
    embeddings, tokens, offset = [], [], 0
    for sequence in sequences:
        for image, start in zip(sequence.images, sequence.image_starts, strict=True):
            count, end = tower.num_tokens(image.grid), ends_by_image[image.digest, image.grid]
            _check_placeholders(sequence, start, count, tower)
            embeddings.append(np.arange(end - count, end))
            tokens.append(np.arange(offset + start, offset + start + count))
        offset += len(sequence.tokens)
    images = distinct.values()
    return PackedImages(
        to_device(np.concatenate([image.values for image in images]), device),
        to_device(np.array([image.grid for image in images], np.int64), device),
        to_device(np.concatenate(embeddings), device),
        to_device(np.concatenate(tokens), device),
    )


def _document_positions(
    sequences: Sequence[TrainSequence], lengths: Sequence[int], tower: VisionTower | None
) -> NDArray[np.int64]:
    """Returns `[3, T]`: every token's positions in its document.

    `lengths` are those of the sequences, and of the documents that fill up the pack.
    """
    merge = _checked(tower).merge
    by_document = [
        image_positions(
            len(sequence.tokens), sequence.image_starts, [image.grid for image in sequence.images], merge
        )
        for sequence in sequences
    ]
    filling = [np.broadcast_to(np.arange(length), (3, length)) for length in lengths[len(sequences) :]]
    return np.concatenate([*by_document, *filling], axis=1)


def _checked(tower: VisionTower | None) -> VisionTower:
    if tower is None:
        raise ValueError(
            "samples have images, and the trainer has no vision tower for them: set trainer.vision_tower to "
            "frozen or trained, for a model whose family has one"
        )
    return tower


def _check_placeholders(sequence: TrainSequence, start: int, count: int, tower: VisionTower) -> None:
    shown = sequence.tokens[start : start + count]
    assert len(shown) == count and (shown == tower.image_token).all(), (
        f"tokens {start} to {start + count} of a sample are not the placeholders of its image"
    )
