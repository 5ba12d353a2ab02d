"""Rewards and weights that an agent gives to single answers, and those that do not fit them."""

from collections.abc import Mapping
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.rollouts.agent.credit import CreditError
from rlrun.plugins.types import Status
from rlrun.runner.rollouts.sessions import empty_generation
from tests.plugins.rollouts.test_agent import HI, Client, run

NAN = float("nan")


def weights(trajectory: Trajectory, kind: str = "policy_weights") -> list[float]:
    array = getattr(trajectory, kind)()
    mask = trajectory.response()[2] > 0
    return [] if array is None else array[mask].tolist()


async def two_answers(client: Client) -> list[str]:
    """Two turns of one conversation; the answers have 5 and 4 tokens."""
    bodies: list[Any] = [{"messages": [HI]}]
    _, first = await client.post(bodies[0])
    _, second = await client.post({"messages": [HI, first["choices"][0]["message"], HI]})
    return [first["id"], second["id"]]


async def credited(result: Mapping[str, Any], **given: Any) -> list[Trajectory]:
    """The samples of two turns with this result, in which FIRST and SECOND are the ids of the responses."""

    async def act(client: Client) -> dict[str, Any]:
        ids = dict(zip(("FIRST", "SECOND"), await two_answers(client), strict=True))
        return {
            name: {ids.get(key, key): one for key, one in value.items()} if isinstance(value, dict) else value
            for name, value in result.items()
        }

    return (await run(act, ["four", "yes"], **given))[0]


@pytest.mark.parametrize(
    ("result", "rewards", "reward"),
    [
        ({"turn_rewards": [0.25, -1]}, [0.25, -1.0], -0.75),
        ({"turn_rewards": {"SECOND": 0.5}}, [0.0, 0.5], 0.5),
        ({"turn_rewards": {"FIRST": True}}, [1.0, 0.0], 1.0),
        ({"turn_rewards": {"0-0-1": 0.5, "msg_0-0-2": 1}}, [0.5, 1.0], 1.5),
        ({"turn_rewards": {}, "reward": 2.0}, [0.0, 0.0], 2.0),
    ],
)
async def test_answers_have_the_rewards_that_the_agent_gives_them(
    result: Mapping[str, Any], rewards: list[float], reward: float
) -> None:
    [one] = await credited(result)
    assert one.turn_rewards == rewards
    assert one.info == {"reward": reward, "samples": 1, "trained_share": 1.0}


async def test_tokens_have_the_weights_that_the_agent_gives_them() -> None:
    [one] = await credited(
        {"policy_weights": {"FIRST": [0, 0.5, 1, 1.5, 2], "SECOND": 0}, "kl_weights": [1, [0, 0, 0, 3]]}
    )
    assert weights(one) == [0, 0.5, 1, 1.5, 2, 0, 0, 0, 0]
    assert weights(one, "kl_weights") == [1, 1, 1, 1, 1, 0, 0, 0, 3]
    assert one.turn_rewards is None
    assert "reward" not in one.info


async def test_what_the_agent_says_between_two_answers_has_a_weight() -> None:
    """Not the template's end of an answer, and nothing behind the last answer, where no other had room."""

    async def act(client: Client) -> None:
        _, first = await client.post({"messages": [HI], "max_tokens": 3})
        messages = [HI, first["choices"][0]["message"], {"role": "user", "content": "b"}]
        _, second = await client.post({"messages": messages})
        messages += [second["choices"][0]["message"], {"role": "user", "content": "x" * 200}]
        assert (await client.post({"messages": messages}))[0] == 400

    [one], _ = await run(act, ["four", "yes"], cross_entropy=0.25, max_new_tokens=64)
    tokens, _, mask, _ = one.response()
    weights = one.cross_entropy()
    assert weights is not None
    assert "".join(chr(token) for token, own in zip(tokens, mask, strict=True) if own) == "fouyes\0"
    said = [chr(token) for token, weight in zip(tokens, weights, strict=True) if weight == 0.25]
    assert "".join(said) == "\nuser: b\0\nassistant: "
    assert set(weights) == {0.0, 0.25}


async def test_every_sample_of_an_execution_has_the_rewards_of_its_own_answers() -> None:
    async def act(client: Client) -> dict[str, Any]:
        first = await client.say(HI)
        await client.say(HI, first, {"role": "user", "content": "a"})
        await client.say({"role": "user", "content": "other"}, model="title")
        await client.say(HI, first, {"role": "user", "content": "b"})
        return {"turn_rewards": [1, 2, 4, 8], "policy_weights": {"0-0-4": 3}}

    trajectories, _ = await run(act, ["four", "1", "2", "3"], trained_models=("any",))
    assert [one.turn_rewards for one in trajectories] == [[1.0, 2.0], [8.0]]
    assert [weights(one) for one in trajectories] == [[], [3.0, 3.0]]
    assert {one.info["reward"] for one in trajectories} == {15.0}


async def test_an_execution_that_ran_out_of_time_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last answer is empty, so that the agent counts one more than the record."""
    generate = ScriptedSession.generate

    async def generate_late(session: ScriptedSession, *asked: Any) -> Generation:
        made = await generate(session, *asked)
        return made if len(session.made) == 1 else empty_generation("abort")

    monkeypatch.setattr(ScriptedSession, "generate", generate_late)
    [one] = await credited({"turn_rewards": [1, 1]})
    assert one.status is Status.ABORTED
    assert one.turn_rewards is None


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            {"turn_rewards": [1.0]},
            "the agent's turn_rewards is a list of length 1, and the policy gave 2 answers: give one value "
            "for each, in order, or a table by the ids of responses",
        ),
        ({"turn_rewards": 1.0}, "the agent's turn_rewards is 1.0: give a list with one value for each"),
        (
            {"turn_rewards": {"chatcmpl-0-0-3": 1.0}},
            "the agent's turn_rewards names 'chatcmpl-0-0-3', and this execution has no such response; its "
            "ids end in …0-0-1, …0-0-2: use the id of a response",
        ),
        ({"policy_weights": {"chatcmpl-0-1-1": 1.0}}, "policy_weights names 'chatcmpl-0-1-1'"),
        ({"turn_rewards": [NAN, 1]}, "turn_rewards has nan for answer 1: a reward must be a number"),
        ({"turn_rewards": [1, 10**400]}, "turn_rewards has 1000"),
        ({"turn_rewards": {"0-0-1": 1, "msg_0-0-1": 2}}, "turn_rewards names an answer twice"),
        ({"turn_rewards": [1, "1"]}, "turn_rewards has '1' for answer 2"),
        ({"turn_rewards": [1, None]}, "turn_rewards has None for answer 2"),
        ({"kl_weights": {"SECOND": NAN}}, "kl_weights has nan for answer 2: a weight must be a finite"),
        ({"policy_weights": [1, -0.5]}, "policy_weights has -0.5 for answer 2"),
        ({"policy_weights": [[1, 1], 1]}, "has 2 weights for answer 1, which has 5 tokens: give one for"),
        ({"policy_weights": [[1, 1, 1, 1, NAN], 1]}, r"policy_weights has \[1, 1, 1, 1, nan\] for answer 1"),
    ],
)
async def test_credit_that_does_not_fit_the_answers_fails_the_execution(
    result: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(CreditError, match=message):
        await credited(result)
