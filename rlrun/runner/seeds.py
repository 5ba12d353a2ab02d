"""Seeds that depend on what is drawn, never on when: a sample has the same seed in any order of events."""

from hashlib import blake2b


def sample_seed(run_seed: int, purpose: str, prompt_index: int, number: int) -> int:
    """Seed of sample `number` of a prompt: 63 bits of a hash, the same on every machine and Python."""
    text = f"{run_seed}/{purpose}/{prompt_index}/{number}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
