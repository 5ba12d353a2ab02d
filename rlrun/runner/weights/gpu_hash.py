"""The hash that SGLang 0.5.23 computes of a tensor on a GPU, computed piece by piece on any device.

    words of 32 bits ──mixed with their position──▶ summed by tile of 8192 words ──mixed──▶ 64 bits per tile
    64 bits per tile ──summed, mixed──▶ the hash                                  (modulo 2^32 and 2^64)

Sums do not depend on their order, so that the pieces of a fused matrix add up to the hash of the whole. torch
has no arithmetic on unsigned integers: int32 and int64 have the same bits, as they wrap around. SGLang's
kernel is sglang/kernels/ops/memory/gpu_tensor_hash.py.
"""

from collections.abc import Iterator, Sequence

import torch

_TILE = 8192
_CHUNK_TILES = 512
"""Tiles that are hashed at a time: 16 MiB, for which the temporary tensors take some 100 MiB."""
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
_SEED = 0x243F6A88
_SEEDS = _SEED, ((_SEED * 0x9E3779B1) ^ 0xDEADBEEF) & _MASK32
_POSITION_FACTORS = 0x27D4EB2D, 0x165667B1
_POSITION_ROTATIONS = 15, 13
_MIX_FACTORS = 0x85EBCA6B, 0xC2B2AE35


class GpuHash:
    """The hash of one tensor, whose pieces are added in the order of their bytes."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the hash is computed."""
        self._device = device
        self._bytes = 0
        self._sums: list[tuple[int, torch.Tensor]] = []
        """The first tile of some sums, and the sums `[2, tiles]` modulo 2^32, in int64."""

    @property
    def is_aligned(self) -> bool:
        """Whether a further piece would begin with a new word; others cannot be added."""
        return self._bytes % 4 == 0

    def add(self, piece: torch.Tensor) -> None:
        """Adds a piece, which may be larger than one chunk."""
        assert self.is_aligned, "pieces are whole words, except for the last one"
        content = piece.contiguous().view(-1).view(torch.uint8)
        if len(content) % 4:
            content = torch.nn.functional.pad(content, (0, -len(content) % 4))
        words, first = content.view(torch.int32), self._bytes // 4
        self._bytes += piece.nbytes
        for begin, end in _chunks(first, first + len(words)):
            positions = torch.arange(begin, end, dtype=torch.int32, device=self._device)
            mixed = _mixed(words[begin - first : end - first].to(self._device), positions)
            before, behind = begin % _TILE, -end % _TILE
            tiles = torch.nn.functional.pad(mixed, (before, behind)).view(2, -1, _TILE)
            self._sums.append((begin // _TILE, tiles.sum(2, dtype=torch.int64) & _MASK32))

    def finish(self) -> torch.Tensor:
        """Returns the sum of all tiles as an int64 scalar on the device; `hexadecimal` reads it."""
        num_words = -(-self._bytes // 4)
        sums = self._sums[0][1].new_zeros(2, -(-num_words // _TILE))
        for first, part in self._sums:
            sums[:, first : first + part.shape[1]] += part
        high, low = _finalized((sums & _MASK32) ^ (num_words * 4 & _MASK32))
        return ((high << 32) | low).sum()


def hexadecimal(totals: Sequence[torch.Tensor]) -> list[str]:
    """Returns SGLang's text of each hash; the totals are copied from the device together."""
    return [f"{_splitmix(total & _MASK64):016x}" for total in torch.stack(list(totals)).tolist()]


def _chunks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of at most one chunk that end where a tile ends."""
    while begin < end:
        stop = min(end, (begin // _TILE + _CHUNK_TILES) * _TILE)
        yield begin, stop
        begin = stop


def _mixed(words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns both mixtures `[2, words]` of the words with their positions."""
    constants = zip(_POSITION_FACTORS, _SEEDS, _POSITION_ROTATIONS, strict=True)
    return torch.stack(
        [
            _murmur(words ^ (positions * _signed(factor) + _signed(seed)) ^ _rotated(positions, rotation))
            for factor, seed, rotation in constants
        ]
    )


def _murmur(x: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's final mixture of 32 bits, in place."""
    first, second = map(_signed, _MIX_FACTORS)
    x ^= _shifted_right(x, 16)
    x *= first
    x ^= _shifted_right(x, 13)
    x *= second
    x ^= _shifted_right(x, 16)
    return x


def _finalized(x: torch.Tensor) -> torch.Tensor:
    """Returns the same mixture of 32-bit numbers that are held in int64."""
    first, second = _MIX_FACTORS
    x = x ^ (x >> 16)
    x = (x * first) & _MASK32
    x = x ^ (x >> 13)
    x = (x * second) & _MASK32
    return x ^ (x >> 16)


def _rotated(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x << bits) | _shifted_right(x, 32 - bits)


def _shifted_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifts int32 without its sign, as if it were unsigned."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _signed(number: int) -> int:
    """Returns the int32 with the bits of an unsigned number."""
    return number - (1 << 32) if number >> 31 else number


def _splitmix(x: int) -> int:
    x ^= x >> 30
    x = (x * 0xBF58476D1CE4E5B9) & _MASK64
    x ^= x >> 27
    x = (x * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
