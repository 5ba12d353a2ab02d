"""The cache of samples that have ended, which the next turn of their conversation continues.

    sample ends ─keep─▶ its prompt's blocks and its own, its recurrent state
                                │
    next turn ──find──▶ whole blocks of the prompt are shared, other tokens copied ─▶ only new tokens are run

The blocks are those of the KV cache, and running samples come first: where blocks are short, kept samples are
dropped, the oldest first. A recurrent state fits only the tokens that made it, so models with Gated DeltaNet
continue whole samples; all others continue any common beginning.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.engine.requests import Group
from rlrun.runner.engines.native.engine.rows import Field, Rows
from rlrun.runner.engines.native.model.cache import BlockPool
from rlrun.runner.engines.native.model.forward import Model


@dataclass(frozen=True, slots=True, eq=False)
class KeptSample:
    """The cache of a sample that has ended."""

    tokens: NDArray[np.int32]
    """`[T]` the prompt's tokens, and all generated ones but the last, which was never run."""
    prompt_length: int
    prompt_blocks: NDArray[np.int32]
    """Those of the prompt, which other samples may use, too."""
    own_blocks: NDArray[np.int32]
    state: int
    """The slot of the recurrent state after the T tokens; not used without Gated DeltaNet."""
    experts: NDArray[np.int16] | None
    """`[T, layers · K]`; None unless the sample reported them."""

    def slots(self, positions: NDArray[np.int64], block: int) -> NDArray[np.int64]:
        """Returns the cache slots of the tokens at `positions`."""
        is_own = positions >= self.prompt_length
        offsets = np.where(is_own, positions - self.prompt_length, positions)
        prompt_blocks = self.prompt_blocks[np.where(is_own, 0, offsets // block)]
        own = np.append(self.own_blocks, 0)  # without tokens of its own there is no block to index
        own_blocks = own[np.where(is_own, offsets // block, -1)]
        return np.where(is_own, own_blocks, prompt_blocks).astype(np.int64) * block + offsets % block


class CachedPrefix(NamedTuple):
    """The beginning of a prompt that is in the cache."""

    kept: KeptSample
    length: int
    """Number of tokens that the prompt has in common with the kept sample."""


class PrefixCache:
    """The samples that are kept, in the order in which they are dropped."""

    def __init__(self, model: Model, pool: BlockPool, rows: Rows, size: int) -> None:
        """`size`: most samples to keep. The model has a slot for the recurrent state of each, behind those of
        the rows.
        """
        self._model, self._pool, self._rows = model, pool, rows
        self.size = size
        self._kept: OrderedDict[KeptSample, None] = OrderedDict()
        self._states = list(range(rows.capacity + 1, rows.capacity + 1 + size))

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, row: int) -> bool:
        """Keeps the cache of a row that ends; the row's own blocks then belong to the kept sample.

        Returns False, and keeps nothing, where a later turn could not continue it: the weights have changed
        since the row began, or the prompt has images, whose positions are not those of tokens.
        """
        entry = self._rows.entries[row]
        group = entry.group
        if not self.size or entry.has_old_weights or group.images.patches:
            return False
        if len(self._kept) == self.size:
            self.drop_oldest()
        state = self._states.pop()
        if (recurrent := self._model.recurrent) is not None:
            recurrent.store([state], [recurrent.of(int(self._rows.ints[Field.SEAT, row]))])
        self._pool.share(group.blocks)
        tokens = np.concatenate([group.prompt, self._rows.cached_tokens(row)])
        experts = np.concatenate(entry.sample.experts) if entry.sample.options.return_routed_experts else None
        own = self._rows.blocks_of(row).copy()
        kept = KeptSample(tokens, len(group.prompt), group.blocks, own, state, experts)
        self._kept[kept] = None
        return True

    def find(self, group: Group) -> CachedPrefix | None:
        """Returns the longest cached beginning of a group's prompt; None if it is shorter than a block.

        The prompt's last token is always run, because its logits are needed.
        """
        if group.images.patches:
            return None
        needs_experts = any(sample.options.return_routed_experts for sample in group.waiting)
        candidates = [kept for kept in self._kept if kept.experts is not None or not needs_experts]
        prefixes = [CachedPrefix(kept, self._common(kept.tokens, group.prompt[:-1])) for kept in candidates]
        longest = max(prefixes, key=lambda prefix: prefix.length, default=None)
        return longest if longest and longest.length >= self._pool.block else None

    def shared_blocks(self, prefix: CachedPrefix) -> NDArray[np.int32]:
        """Returns the blocks of the kept sample's prompt whose tokens are all part of the prefix."""
        whole = min(prefix.length, prefix.kept.prompt_length) // self._pool.block
        return prefix.kept.prompt_blocks[:whole]

    def fill(self, group: Group, prefix: CachedPrefix) -> None:
        """Copies the rest of the prefix into the blocks of a group, and notes what its prompt starts from."""
        kept, length, block = *prefix, self._pool.block
        positions = np.arange(len(self.shared_blocks(prefix)) * block, length)
        targets = group.blocks[positions // block].astype(np.int64) * block + positions % block
        self._model.cache.copy_tokens(kept.slots(positions, block), targets)
        group.cached = group.waiting[0].cached_tokens = length
        if kept.experts is not None:
            group.cached_experts = kept.experts[:length]
        if (recurrent := self._model.recurrent) is not None:
            group.recurrent = recurrent.of(kept.state)
        # The next turn will be kept itself, so what it continues is dropped first.
        self._kept.move_to_end(kept, last=False)

    def drop_oldest(self) -> bool:
        """Drops a kept sample; returns False if there is none."""
        if not self._kept:
            return False
        kept, _ = self._kept.popitem(last=False)
        self._states.append(kept.state)
        self._pool.give_back(kept.prompt_blocks)
        self._pool.give_back(kept.own_blocks)
        return True

    def clear(self) -> None:
        """Drops all kept samples."""
        while self.drop_oldest():
            pass

    def _common(self, kept: NDArray[np.int32], prompt: NDArray[np.int32]) -> int:
        """Returns how many tokens of a kept sample a prompt can continue."""
        length = min(len(kept), len(prompt))
        differs = kept[:length] != prompt[:length]
        common = int(differs.argmax()) if differs.any() else length
        return common if self._model.recurrent is None or common == len(kept) else 0
