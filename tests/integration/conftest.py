"""Jobs that join one Ray cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Runs jobs in a folder of this module's."""
    with Jobs(tmp_path_factory.mktemp("jobs"), tiny_model, ray_cluster) as jobs:
        yield jobs
