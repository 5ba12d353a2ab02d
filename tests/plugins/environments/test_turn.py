"""What an environment may return, as rows."""

from typing import Any

import pytest

from rlrun.plugins.environments.turn import Turn, checked_messages, checked_turn

ASKED = [{"role": "user", "content": "higher"}]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(("higher", 0.5, False), {"rewards": {"": 0.5}, "done": False}, id="three_values"),
        pytest.param(("higher", 1, True, {"won": 1}), {"info": {"won": 1}, "done": True}, id="four_values"),
        pytest.param(Turn("higher"), {"messages": ASKED, "rewards": {"": 0.0}, "player": 0}, id="defaults"),
        pytest.param(Turn(None, 1.0, True), {"messages": []}, id="nothing_to_read_at_the_end"),
        pytest.param(Turn("o", {0: 1, 1: -1}, True), {"rewards": {"0": 1.0, "1": -1.0}}, id="by_player"),
        pytest.param(Turn("o", player=1), {"player": 1}, id="another_player"),
    ],
)
def test_turns(answer: Any, expected: dict[str, Any]) -> None:
    turn = checked_turn(answer)
    assert {name: turn[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(("higher", 1.0), r"step returned \('higher', 1.0\), not", id="too_few_values"),
        pytest.param(None, "step returned None", id="nothing"),
        pytest.param(("higher", "much", False), "the reward is 'much', not a number", id="reward_is_text"),
        pytest.param(("higher", float("nan"), True), "not a finite number", id="reward_is_nan"),
        pytest.param(
            (7, 0.0, False), "the observation is 7, neither a text nor", id="observation_is_a_number"
        ),
        pytest.param((None, 0.0, False), "the observation is None", id="nothing_to_read_before_the_end"),
        pytest.param(([{"role": "user"}], 0.0, False), "neither a text nor", id="message_without_content"),
    ],
)
def test_wrong_turns_are_refused_with_what_they_are(answer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_turn(answer)


def test_messages_are_kept_and_a_text_is_a_user_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    assert checked_messages(messages) == messages
    assert checked_messages("higher") == ASKED
