"""examples/environments/orders.py: a customer whom another model plays, a database, and a goal."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.registry import build
from rlrun.plugins.types import Status

EXAMPLE = Path(__file__).parents[3] / "examples/environments/orders.py"
CANCEL = '<tool_call>{"name": "cancel_order", "arguments": {"order": 1}}</tool_call>'
SHIPPED = CANCEL.replace("1", "2")


async def serve(
    customer: list[str], clerk: list[str], task: int = 0, turns: int = 8
) -> tuple[Trajectory, list[Any]]:
    """Returns the conversation of a clerk with a customer, and what the customer's model was asked."""
    environment = {"type": f"{EXAMPLE}:Orders", "processes": 1, "turns": turns}
    row = build("data", "environment", {"environment": environment})[task]
    session = ScriptedSession(clerk, row=row, engines={"customer": customer})
    rollout = build("rollouts", "environment", {"engines": ["customer"]})
    try:
        [trajectory] = await rollout.run(session)
    finally:
        await rollout.close()
    return trajectory, session.engine("customer").asked


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")


async def test_the_database_decides_whether_the_wish_was_met() -> None:
    trajectory, asked = await serve(["Cancel my lamp.", "###"], [CANCEL, "It is cancelled."])
    assert (trajectory.info["reward"], trajectory.info["turns"], trajectory.status) == (
        1.0,
        2,
        Status.COMPLETED,
    )
    roles = [message["role"] for message in asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert asked[-1]["messages"][-1]["content"] == "It is cancelled."
    assert "You are Ada" in asked[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("task", "clerk", "reward"),
    [
        (0, ["It is cancelled."], 0.0),
        (0, [SHIPPED, "It is cancelled."], 0.0),
        (1, [SHIPPED, "It cannot be cancelled."], 1.0),
        (1, [CANCEL, "It is cancelled."], 0.0),
        (0, ["<tool_call>{}</tool_call>", CANCEL, "It is cancelled."], 1.0),
    ],
    ids=["nothing-done", "wrong-order", "impossible", "wrong-wish", "malformed-call"],
)
async def test_words_alone_have_no_reward(task: int, clerk: list[str], reward: float) -> None:
    trajectory, _ = await serve(["Please.", "###"], clerk, task)
    assert trajectory.info["reward"] == reward


async def test_a_customer_who_never_ends_is_left_after_some_turns() -> None:
    trajectory, _ = await serve(["Please."], ["Which one?"], turns=3)
    assert (trajectory.info["reward"], trajectory.info["turns"]) == (0.0, 3)


async def test_an_engine_that_is_gone_is_no_mistake_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rlrun.plugins.authoring.rollout_testing import ScriptedEngine

    async def gone(self: ScriptedEngine, body: object) -> dict[str, Any]:
        raise InfrastructureError("the customer is gone")

    monkeypatch.setattr(ScriptedEngine, "complete", gone)
    with pytest.raises(InfrastructureError, match="the customer is gone"):
        await serve(["Please."], ["Which one?"])
