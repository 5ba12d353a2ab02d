"""Every job starts a Ray of its own, whose end is what is looked at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs

STEPS = 12
"""Of the job that nothing happens to: `reference`, in tests/conftest.py."""


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Runs jobs in a folder of this module's."""
    with Jobs(tmp_path_factory.mktemp("jobs"), tiny_model) as jobs:
        yield jobs
