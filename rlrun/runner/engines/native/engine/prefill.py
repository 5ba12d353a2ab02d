"""Runs prompts: of groups that start, and of sequences whose tokens are to be scored.

groups that start ─▶ packed, after what is cached ─▶ keys and values into the cache, results into the groups
scored prompts    ─▶ packed, nothing cached ─▶ states of all tokens ─▶ logits, a chunk at a time ─▶ log-probs
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.requests import Group, SampleInProgress
from rlrun.runner.engines.native.engine.rows import RowEntry
from rlrun.runner.engines.native.model.batches import packed_prompts
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.engines.native.model.experts import choices
from rlrun.runner.engines.native.model.forward import CachedPrefixes, Model
from rlrun.runner.engines.native.model.image_tower import PromptImages

CHUNK_BYTES = 64 << 20
"""Most bytes of float32 logits that exist at a time."""
Tokens = NDArray[np.int32]


def samples_of(entry: RowEntry) -> list[SampleInProgress]:
    """Returns a row's sample and those of its group that still wait."""
    return [entry.sample, *entry.group.waiting]


def run_prompts(model: Model, groups: Sequence[Group], block: int, *, reports_experts: bool) -> None:
    """Runs the prompts of groups in one pass, and stores in each group what its samples start from."""
    prompts = [group.prompt for group in groups]
    starts = [group.cached for group in groups]
    lengths = [len(prompt) - start for prompt, start in zip(prompts, starts, strict=True)]
    blocks = [group.blocks for group in groups]
    packed = packed_prompts(prompts, model.padded(sum(lengths)), blocks, block, starts)
    cached = CachedPrefixes(starts, blocks, [group.recurrent for group in groups]) if any(starts) else None
    chosen: list[torch.Tensor] = []
    images = [group.images for group in groups]
    hidden, recurrent = model.prefill(packed, lengths, chosen if reports_experts else None, images, cached)
    logits = model.logits(hidden)
    experts = choices(chosen, model.architecture)[: sum(lengths)] if chosen else None
    pieces = np.split(experts, np.cumsum(lengths)[:-1]) if experts is not None else [None] * len(groups)
    for index, (group, piece) in enumerate(zip(groups, pieces, strict=True)):
        group.logits = logits[index : index + 1]
        group.recurrent = recurrent and recurrent.of(index)
        known = group.cached_experts
        group.experts = piece if piece is None or known is None else np.concatenate([known, piece])


def keep_results(group: Group) -> None:
    """Keeps the results of a group whose samples still wait, and drops those of any other group.

    It copies them, because slices would keep the tensors of the whole pass in memory.
    """
    waits = bool(group.waiting)
    group.logits = group.logits.clone() if waits else None
    group.recurrent = group.recurrent.clone() if waits and group.recurrent else None
    group.experts = group.experts if waits else None


class TokenScores(NamedTuple):
    """The scores of a prompt's tokens from the second one on."""

    log_probs: NDArray[np.float32]
    """`[P - 1]`"""
    top_ids: NDArray[np.int32] | None = None
    """`[P - 1, k]` the most probable tokens at each position, in order; None unless they were asked for."""
    top_log_probs: NDArray[np.float32] | None = None
    """`[P - 1, k]`"""


@torch.inference_mode()
def token_scores(
    model: Model, prompts: Sequence[Tokens], images: Sequence[PromptImages] = (), num_top: int = 0
) -> list[TokenScores]:
    """Returns, for each prompt `[P]`, the scores of its tokens from the second one on.

    `images`: those of each prompt; empty: no prompt has images. `num_top`: how many of the most probable
    tokens each position has.
    """
    lengths = [len(prompt) for prompt in prompts]
    packed = packed_prompts(prompts, model.padded(sum(lengths)))
    states = model.states(packed, lengths, images)
    [following] = to_device([np.roll(packed[0], -1)], model.device)
    num_top = min(num_top, len(model.weights.embedding))
    chunks = list(_chunked_scores(model, states[: sum(lengths)], following, num_top))
    columns = [torch.cat(column).cpu().numpy() for column in zip(*chunks, strict=True)]
    ends = np.cumsum(lengths)[:-1]
    parts = zip(*(np.split(column, ends) for column in columns), strict=True)
    return [TokenScores(*(part[:-1] for part in of_prompt)) for of_prompt in parts]


def _chunked_scores(
    model: Model, states: torch.Tensor, following: torch.Tensor, num_top: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields, chunk by chunk, the log-prob of the token that follows each state, and, if `num_top` is not 0,
    the ids and log-probs of the most probable ones.
    """
    rows = max(1, CHUNK_BYTES // (4 * len(model.weights.embedding)))
    for start in range(0, len(states), rows):
        log_probs = model.logits(states[start : start + rows]).float().log_softmax(-1)
        own = log_probs.gather(1, following[start : start + len(log_probs), None])[:, 0]
        if num_top:
            values, ids = log_probs.topk(num_top)
            yield own, ids.int(), values
        else:
            yield (own,)
