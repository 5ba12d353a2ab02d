"""The process that pretends to have a GPU, shared by all traces."""

from collections.abc import Iterator

import pytest

from tests.cuda.tracer import Tracer


@pytest.fixture(scope="session")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """Traces modules on a pretended GPU."""
    with Tracer(tmp_path_factory.mktemp("cuda")) as tracer:
        yield tracer
