"""Jobs start a Ray of their own, whose end is looked at, or join one that outlives them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs

STEPS = 12
"""Of the job that nothing happens to: `reference`, in tests/conftest.py."""


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Runs jobs in a folder of this module's, each with a Ray of its own."""
    with Jobs(tmp_path_factory.mktemp("jobs"), tiny_model) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def joining_jobs(
    tiny_model: Path, ray_cluster: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jobs]:
    """Runs jobs that join one Ray cluster, as those do whose end of Ray nobody looks at."""
    with Jobs(tmp_path_factory.mktemp("jobs"), tiny_model, ray_cluster) as jobs:
        yield jobs
