"""How many programs of an agent run at once on a host."""

import pytest

from rlrun.specs.derived.agent_programs import program_limit
from rlrun.specs.sections.job import Spec

GIB = 2**30
COMMAND = {"type": "agent", "command": ["python", "agent.py"]}


@pytest.mark.parametrize(
    ("function", "cores", "memory", "limit"),
    [
        pytest.param({"type": "single_turn"}, 2, 24 * GIB, None, id="no agent"),
        pytest.param({"type": "agent", "agent": {"type": "a"}}, 2, 24 * GIB, None, id="no program"),
        pytest.param(COMMAND, 2, 24 * GIB, (16, "8 per core of 2"), id="cores"),
        pytest.param(COMMAND, 64, 16 * GIB, (32, "half of 16 GiB, 256 MiB for each"), id="memory"),
        pytest.param(COMMAND, 2, GIB // 8, (1, "half of 0 GiB, 256 MiB for each"), id="at least one"),
        pytest.param(COMMAND | {"max_programs": 99}, 2, GIB, (99, "rollout.function.max_programs"), id="own"),
    ],
)
def test_the_limit_follows_from_the_host(
    function: dict[str, object], cores: int, memory: int, limit: tuple[int, str] | None
) -> None:
    spec = Spec.model_validate(
        {
            "name": "a",
            "model": {"path": "m"},
            "data": {"path": "rows.jsonl"},
            "rollout": {"function": function},
            "trainer": {"steps": 1},
        }
    )
    derived = program_limit(spec.rollout.function, cores, memory)
    assert (derived and (derived.number, derived.reason.partition(";")[0])) == limit
