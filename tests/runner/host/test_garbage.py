import gc

from rlrun.runner.host.garbage import NEW_OBJECTS, rare_collections


class Cycle:
    """Garbage that only a collection frees."""

    freed = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cycle.freed += 1


def test_cycles_are_collected_rarely_but_they_are() -> None:
    thresholds, before = gc.get_threshold(), Cycle.freed
    with rare_collections():
        frozen = gc.get_freeze_count()
        Cycle()
        kept = [[] for _ in range(NEW_OBJECTS // 2)]
        assert Cycle.freed == before
        kept += [[] for _ in range(NEW_OBJECTS)]
        assert Cycle.freed == before + 1
    assert frozen > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)
