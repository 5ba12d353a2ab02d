"""Seeds that depend on what is drawn, never on when: a sample has the same seed in any order of events."""

from hashlib import blake2b


def sample_seed(run_seed: int, purpose: str, prompt_index: int, number: int) -> int:
    """Seed of sample `number` of a prompt: 63 bits of a hash, the same on every machine and Python."""
    return _hashed(f"{run_seed}/{purpose}/{prompt_index}/{number}")


def turn_seed(seed: int, turn: int) -> int:
    """Seed of an execution's answer number `turn`; the first is the sample's own."""
    return _hashed(f"{seed}/{turn}") if turn else seed


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
