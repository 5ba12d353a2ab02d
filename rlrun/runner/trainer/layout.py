"""Which place a rank has in the parallel layout; needs no torch."""

from rlrun.specs.trainer import ParallelSpec


def data_rank(rank: int, parallel: ParallelSpec) -> int:
    """Which data-parallel slice rank `rank` trains on; tensor-parallel neighbours share one.

    Ranks are numbered with replicas outermost, then shards, then the tensor-parallel ranks of a slice.
    """
    return rank // parallel.tensor


def speaks(rank: int, parallel: ParallelSpec) -> bool:
    """Whether a rank answers for its data rank: the first of its tensor-parallel group."""
    return rank % parallel.tensor == 0
