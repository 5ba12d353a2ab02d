"""How long a call to an engine may go unanswered."""

from typing import Any

import pytest

from rlrun.plugins.validation import needs_of
from rlrun.specs.derived.request_deadlines import answer_timeout
from tests.resolved_specs import resolved


@pytest.mark.parametrize(
    ("algorithm", "rollout", "seconds"),
    [
        ("grpo", {}, 30),
        ("remax", {"oversample": 12}, 50),
        ("grpo", {"oversample": 16}, 40),
        ("grpo", {"mode": "async", "max_staleness": 3}, 50),
        ("grpo", {"batch_size": 1, "samples_per_prompt": 2}, 20),
    ],
)
def test_a_connection_waits_for_the_requests_that_queue_before(
    algorithm: str, rollout: dict[str, Any], seconds: float
) -> None:
    spec = resolved(
        {
            "name": "job",
            "model": {"path": "some/model"},
            "data": {"type": "jsonl", "path": "rows.jsonl"},
            "algorithm": {"type": algorithm},
            "engine": {"max_running": 32},
            "cluster": {"placement": "disaggregated"},
            "rollout": {"batch_size": 8, "samples_per_prompt": 4, "request_timeout": 10.0, **rollout},
        }
    )
    assert answer_timeout(spec, needs_of(spec)) == seconds
