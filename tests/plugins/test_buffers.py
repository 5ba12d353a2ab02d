import pytest

from rlrun.plugins.registry import build, names
from rlrun.plugins.testing import check_buffer
from rlrun.plugins.types import Buffered


@pytest.mark.parametrize("name", names("buffers"))
def test_every_strategy_keeps_the_contract(name: str) -> None:
    check_buffer(name, {})


@pytest.mark.parametrize(("name", "order"), [("fifo", [3, 1, 2, 0]), ("freshest", [0, 1, 2, 3])])
def test_groups_go_by_the_age_of_their_oldest_token(name: str, order: list[int]) -> None:
    versions = {0: 5, 1: 4, 2: 4, 3: -1}
    buffered = [Buffered(index, index == 2, 1, version) for index, version in versions.items()]
    assert build("buffers", name, {}).order(buffered, 6) == order
