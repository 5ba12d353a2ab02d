"""One tiny model; every job starts a Ray of its own, whose end is what is looked at."""

from pathlib import Path

import pytest

from tests.integration.jobs import Ended, Jobs
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Runs jobs in a folder of this module's."""
    return Jobs(tmp_path_factory.mktemp("jobs"), tiny_model)


STEPS = 12


@pytest.fixture(scope="session")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run that nothing happens to."""
    return Jobs(tmp_path_factory.mktemp("whole"), tiny_model).run("whole", trainer__steps=STEPS)
