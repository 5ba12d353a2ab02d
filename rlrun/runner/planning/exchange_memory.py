"""Counts the GPU memory of exchanges that keep buffers: DeepEP's, and torch's symmetric memory.

The buffers are allocated once and never released, also while engines use the GPU.
"""

from collections.abc import Iterator

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.rank_layout import largest_micro_batch, most_routed_tokens
from rlrun.specs.sections.trainer import TrainerSpec


def exchange_buffers(
    model: Architecture, trainer: TrainerSpec, longest: int, gpus_per_node: int
) -> Iterator[tuple[int, str]]:
    """Yields the bytes of each buffer of a rank, and what it is. Samples have at most `longest` tokens."""
    if trainer.parallel.token_dispatcher == "deepep" and model.experts is not None:
        tokens = most_routed_tokens(trainer, longest)
        yield (
            _deepep_bytes(model, trainer.parallel.expert, tokens, gpus_per_node),
            f"DeepEP, {tokens:,} tokens",
        )
    if trainer.parallel.async_tensor:
        # two pieces of the sum over ranks: one is sent while the other is computed
        ranks = trainer.parallel.context * trainer.parallel.tensor
        rows = -(-largest_micro_batch(trainer, longest) // ranks)
        yield 2 * rows * model.hidden * ITEM_BYTES[trainer.dtype], f"async_tensor, 2 × {rows:,} tokens"


def _deepep_bytes(model: Architecture, ranks: int, tokens: int, gpus_per_node: int) -> int:
    """Returns the bytes of DeepEP's buffer: `tokens` of each rank, and copies for the network between nodes.

    As in DeepEP 2 (`get_dispatch_buffer_size` in csrc/elastic/buffer.hpp), whose tokens carry an id and a
    weight for each expert. A node counts as one domain of NVLink.
    """
    assert model.experts is not None
    token = model.hidden * 2 + model.experts.per_token * 8
    nodes = -(-ranks // max(gpus_per_node, 1))
    return (ranks + (1 + nodes if nodes > 1 else 0)) * tokens * token
