"""Seeds that depend on what is sampled, not on when: a sample has the same seed in any order of events."""

from hashlib import blake2b


def sample_seed(run_seed: int, purpose: str, prompt_index: int, number: int) -> int:
    """Returns the seed of sample `number` of a prompt: 63 bits of a hash, the same on every machine."""
    return _hash_63_bits(f"{run_seed}/{purpose}/{prompt_index}/{number}")


def turn_seed(seed: int, turn: int) -> int:
    """Returns the seed of answer `turn` of an execution; the first answer has the sample's seed."""
    return _hash_63_bits(f"{seed}/{turn}") if turn else seed


def update_seed(run_seed: int, role: str, update: int, data_rank: int) -> int:
    """Returns the seed of the global generators in optimizer step `update` of a model.

    Ranks that share the data share the seed, because all of them compute the loss of the same tokens.
    """
    return _hash_63_bits(f"{run_seed}/{role}/{update}/{data_rank}")


def _hash_63_bits(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
