"""Every layout of the trainer on a pretended GPU: no tensor is on the wrong device, NCCL takes every
collective, and the host is blocked as often as the budget says, no more and no less.
"""

import pytest

from tests.cuda.budgets import budget
from tests.cuda.cases import EXCHANGES, OFFLOADED, PARITY, RANKS, SETTINGS, WITH_ADAPTERS, Case
from tests.cuda.tracer import Tracer, blocking, lines_of, needs_pretence

pytestmark = needs_pretence
CASES = [
    pytest.param(case, marks=[pytest.mark.slow] if case.slow else [], id=case.name)
    for case in [*PARITY, *SETTINGS, *EXCHANGES, *RANKS, *OFFLOADED, *WITH_ADAPTERS]
]


@pytest.mark.parametrize("case", CASES)
def test_a_layout_trains_within_its_budget(case: Case, tracer: Tracer):
    trace = tracer.run(case)
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    over = {
        name: (blocking(phase["counts"]), expected, lines_of(phase))
        for name, phase, expected in compared(case, trace)
        if blocking(phase["counts"]) != expected
    }
    assert not over, "\n".join(
        f"{name}: recorded {recorded}, budget {expected}\n{lines}"
        for name, (recorded, expected, lines) in over.items()
    )


def compared(case, trace):
    """Yields each phase that has a budget: its name, what was recorded, and the budget."""
    for name, phase in trace["phases"].items():
        kind, _, label = name.rpartition(" ")
        if label in ("few", "many"):
            yield name, phase, budget(case, kind, trace["result"], trace["result"][label])
        elif name in ("gather", "park", "save", "load"):
            yield name, phase, budget(case, name, trace["result"], 0)
