"""Log-probs of tokens that are given, at temperature 1: what a model thinks of others' samples.

prompts ─▶ packed, nothing cached ─▶ states of all tokens ─▶ logits, a chunk at a time ─▶ log-probs
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native.model.batches import packed_prompts
from rlrun.runner.engines.native.model.forward import Model

CHUNK_BYTES = 64 << 20
"""Float32 logits held at a time."""

Tokens = NDArray[np.int32]


@torch.inference_mode()
def token_log_probs(model: Model, prompts: Sequence[Tokens]) -> list[NDArray[np.float32]]:
    """For each prompt `[P]` the log-probs `[P - 1]` of its tokens from the second on."""
    lengths = [len(prompt) for prompt in prompts]
    device = model.weights.norm.device
    packed = packed_prompts(prompts, model.padded(sum(lengths)))
    states = model.states(torch.from_numpy(packed).to(device), lengths)
    following = torch.from_numpy(np.roll(packed[0], -1)).to(device)
    found = torch.cat(list(_chunks(model, states[: sum(lengths)], following))).cpu().numpy()
    return [part[:-1] for part in np.split(found, np.cumsum(lengths)[:-1])]


def _chunks(model: Model, states: torch.Tensor, following: torch.Tensor) -> Iterator[torch.Tensor]:
    """Log-probs of the token that follows each state."""
    rows = max(1, CHUNK_BYTES // (4 * len(model.weights.embedding)))
    for start in range(0, len(states), rows):
        log_probs = model.logits(states[start : start + rows]).float().log_softmax(-1)
        yield log_probs.gather(1, following[start : start + len(log_probs), None])[:, 0]
