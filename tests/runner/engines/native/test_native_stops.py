"""What the native engine remembers of stop tokens that requests asked for."""

import numpy as np
import pytest

from rlrun.runner.engines.native.engine import stops
from rlrun.runner.engines.native.engine.requests import SamplingParams
from rlrun.runner.engines.native.engine.stops import StopTokens


def test_sets_that_no_sample_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "MAX_SETS", 8)
    tokens = StopTokens(100, (1,))
    running = np.zeros(4, np.int64)
    running[1] = tokens.index(SamplingParams(stop_token_ids=(50,)))
    running[2] = tokens.index(SamplingParams(stop_token_ids=(60, 70)))
    for token in range(2, 40):
        tokens.bound(running)
        running[3] = tokens.index(SamplingParams(stop_token_ids=(token,)))
        assert len(tokens.table) <= 8
        ends = [np.flatnonzero(tokens.table[row]).tolist() for row in running]
        assert ends == [[], [1, 50], [1, 60, 70], [1, token]]
