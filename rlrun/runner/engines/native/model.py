"""The forward passes: prompts packed into one batch, and one token for each running row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.engines.native import torch_ops
from rlrun.runner.engines.native.cache import BLOCK, KVCache, blocks_for
from rlrun.runner.engines.native.config import ModelConfig
from rlrun.runner.engines.native.rope import rope_tables
from rlrun.runner.engines.native.weights import LayerWeights, ModelWeights

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """M rows, each with one token to process; all `[M]` int64 unless said otherwise."""

    tokens: Int64
    positions: Int64
    """Absolute positions of `tokens`."""
    slots: Int64
    """Where the tokens' keys and values go: block * 16 + offset."""
    seats: Int64
    """Rows of `suffix_tables`."""
    prefix_seats: Int64
    """Rows of `prefix_tables`; rows of one prompt stand side by side."""
    prefix_lengths: Int64
    suffix_lengths: Int64
    """Own tokens, this one included."""
    prefix_tables: NDArray[np.int32]
    """`[S, W]` blocks of each prompt."""
    suffix_tables: NDArray[np.int32]
    """`[S, W]` blocks of each sample."""

    def gathered(self) -> tuple[Int64, NDArray[np.bool_]]:
        """Blocks `[M, W]` of every row, the prompt's and then its own, and which of their tokens exist."""
        parts, masks = [], []
        for tables, seats, lengths in (
            (self.prefix_tables, self.prefix_seats, self.prefix_lengths),
            (self.suffix_tables, self.seats, self.suffix_lengths),
        ):
            width = blocks_for(int(lengths.max()))
            parts.append(tables[seats, :width])
            masks.append(np.arange(width * BLOCK) < lengths[:, None])
        return np.concatenate(parts, 1, dtype=np.int64), np.concatenate(masks, 1)


class Model:
    """A decoder with its cache. `weights` may be replaced between two passes.

    Both passes return normed hidden states in the model's dtype; `logits` makes logits of them.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, cache: KVCache, length: int) -> None:
        self.config = config
        self.weights = weights
        self.cache = cache
        tables = rope_tables(config.rope, config.head_dim, length)
        self._cos, self._sin = (table.to(weights.norm.device) for table in tables)

    def prefill(self, packed: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Process prompts of `lengths`, one after the other in `packed`; their last states `[P, H]`.

        `packed` `[3, T]` int64: tokens, positions, and slots of the cache.
        """
        tokens, positions, slots = packed
        x = self.weights.embedding[tokens]
        for index, layer in enumerate(self.weights.layers):
            qkv = self._project(x, layer, index, positions, slots)
            attended = torch_ops.prefill_attention(
                qkv, self.config.num_heads, self.config.num_kv_heads, list(lengths)
            )
            x = self._finish_layer(x, attended, layer)
        last = torch.tensor(lengths, device=x.device).cumsum(0) - 1
        return torch_ops.rms_norm(x[last], self.weights.norm, self.config.norm_eps)

    def decode(self, batch: DecodeBatch) -> torch.Tensor:
        """Process one token of every row: states `[M, H]`."""
        device = self.weights.norm.device
        tables, mask = (torch.from_numpy(array).to(device) for array in batch.gathered())
        packed = np.stack([batch.tokens, batch.positions, batch.slots])
        tokens, positions, slots = torch.from_numpy(packed).to(device)
        x = self.weights.embedding[tokens]
        for index, layer in enumerate(self.weights.layers):
            qkv = self._project(x, layer, index, positions, slots)
            attended = torch_ops.decode_attention(
                qkv[:, : self.config.num_heads],
                self.cache.keys[index],
                self.cache.values[index],
                tables,
                mask,
            )
            x = self._finish_layer(x, attended, layer)
        return torch_ops.rms_norm(x, self.weights.norm, self.config.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[B, H]` -> `[B, V]` in the model's dtype."""
        return torch_ops.linear(hidden, self.weights.head, None)

    def _project(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        index: int,
        positions: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Queries, keys and values `[T, heads + 2 kv heads, D]`, rotated, and cached."""
        normed = torch_ops.rms_norm(x, layer.input_norm, self.config.norm_eps)
        qkv = torch_ops.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, self.config.head_dim)
        torch_ops.rope_store(
            qkv,
            (layer.q_norm, layer.k_norm),
            self.config.norm_eps,
            (self._cos[positions], self._sin[positions]),
            (self.cache.keys[index], self.cache.values[index], slots),
        )
        return qkv

    def _finish_layer(self, x: torch.Tensor, attended: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        x = x + torch_ops.linear(attended, layer.output, layer.output_bias)
        normed = torch_ops.rms_norm(x, layer.mlp_norm, self.config.norm_eps)
        inner = torch_ops.silu_mul(torch_ops.linear(normed, layer.gate_up, layer.gate_up_bias))
        return x + torch_ops.linear(inner, layer.down, layer.down_bias)
