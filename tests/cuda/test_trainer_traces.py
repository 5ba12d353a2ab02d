"""Every layout of the trainer on a pretended GPU: no tensor is on the wrong device, NCCL takes every
collective, and the host is blocked as often as the budget says, no more and no less.
"""

import pytest

from tests.cuda.budgets import budget
from tests.cuda.cases import (
    ADAPTERS,
    COMPILED,
    EXCHANGES,
    LOW_PRECISION,
    OFFLOADED,
    PARITY,
    RANKS,
    SETTINGS,
    SHARED_PREFIXES,
    WITH_ADAPTERS,
    Case,
)
from tests.cuda.tracer import Tracer, blocking, lines_of, needs_pretence

pytestmark = needs_pretence
CHOSEN = [
    *PARITY,
    *SETTINGS,
    *SHARED_PREFIXES,
    *EXCHANGES,
    *COMPILED,
    *RANKS,
    *OFFLOADED,
    *WITH_ADAPTERS,
    *LOW_PRECISION,
]
CASES = [pytest.param(case, marks=[pytest.mark.slow] if case.slow else [], id=case.name) for case in CHOSEN]


@pytest.mark.parametrize("case", CASES)
def test_a_layout_trains_within_its_budget(case: Case, tracer: Tracer):
    trace = tracer.run(case)
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    assert bool(trace["result"]["graphs"]) == case.trainer.get("compile", False)
    over = {
        name: (blocking(phase["counts"]), expected, lines_of(phase))
        for name, phase, expected in compared(case, trace)
        if blocking(phase["counts"]) != expected
    }
    assert not over, "\n".join(
        f"{name}: recorded {recorded}, budget {expected}\n{lines}"
        for name, (recorded, expected, lines) in over.items()
    )


@pytest.mark.parametrize("exact", [True, False])
def test_an_exact_rank_calls_the_kernels_of_the_server(exact: bool, tracer: Tracer):
    result = tracer.run(Case("qwen3", exact=exact))["result"]
    assert result["splits"] == [1 if exact else 0]
    assert result["softmax"] == (["torch.bfloat16"] if exact else [])
    assert result["rotation"] == (["torch.float32"] if exact else [])
    assert result["kernels"] == (["SGLang"] if exact else [])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("qwen3", {"fsdp": 2}, ADAPTERS), id="dense"),
        pytest.param(
            Case("qwen3-moe", {"fsdp": 2, "expert": 2}, ADAPTERS), id="experts", marks=pytest.mark.slow
        ),
    ],
)
def test_ranks_exchange_the_gradients_of_adapters_and_no_others(case: Case, tracer: Tracer):
    trace = tracer.run(case)
    assert trace["error"] is None, trace["error"]
    for label in ("few", "many"):
        passes = case.layers * trace["result"][label]
        collectives = trace["phases"][f"train {label}"]["collectives"]
        assert collectives["_reduce_scatter_base_ float32"] == passes  # not the embedding's, not the head's
        assert collectives["all_reduce float32"] == 1, "the norm"


def compared(case, trace):
    """Yields each phase that has a budget: its name, what was recorded, and the budget."""
    for name, phase in trace["phases"].items():
        kind, _, label = name.rpartition(" ")
        if label in ("few", "many"):
            yield name, phase, budget(case, kind, trace["result"], trace["result"][label])
        elif name in ("gather", "park", "save", "load"):
            yield name, phase, budget(case, name, trace["result"], 0)
