"""Ends what the trainer's tests share."""

from collections.abc import Iterator

import pytest

from tests.runner.trainer.forked_ranks import rank_server


@pytest.fixture(scope="session", autouse=True)
def forked_ranks() -> Iterator[None]:
    """Ends the process whose forks the ranks are, if a test has started it."""
    yield
    if rank_server.cache_info().currsize:
        rank_server().close()
