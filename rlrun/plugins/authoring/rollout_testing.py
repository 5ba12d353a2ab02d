"""A policy that says what it is told to, and the contract of rollouts, for the tests of whoever writes one.

from rlrun.plugins.authoring.rollout_testing import ScriptedSession

session = ScriptedSession(["<tool_call>…</tool_call>", "42"])
trajectory = await rollout.run(session)
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.authoring.letter_chat import LetterChat
from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.protocols import Executed
from rlrun.plugins.registry import build
from rlrun.plugins.types import Prompt, Row, VersionSpan

Tokens = NDArray[np.int32]


class ScriptedSession:
    """An execution whose policy gives the answers of a script; the last one again once they are used up."""

    def __init__(
        self,
        answers: Sequence[str],
        *,
        prompt: str = "a question",
        row: Row | None = None,
        max_new_tokens: int = 4096,
        max_turn_tokens: int | None = None,
        id: str = "0-0",
    ) -> None:
        """An answer that ends in `…` is cut off there (finish `length`); others end with the end token."""
        self.chat = LetterChat()
        tokens = self.chat.render([{"role": "user", "content": prompt}])
        self.prompt = Prompt(row or Row("0", prompt), 0, tokens)
        self.id = id
        self.seed = 7
        self.sampling = Sampling(max_new_tokens)
        self.max_tokens = len(tokens) + max_new_tokens
        self.max_turn_tokens = max_turn_tokens or max_new_tokens
        self.made: list[Generation] = []
        """What was answered so far."""
        self.asked: list[Tokens] = []
        """What was asked."""
        self._answers = answers

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> Generation:
        """The next answer, cut to what may be made; its log-probs are -1, -2, … by turn."""
        await asyncio.sleep(0)
        answer = self._answers[min(len(self.made), len(self._answers) - 1)]
        longest = min((sampling or self.sampling).max_new_tokens, self.max_turn_tokens)
        room = min(longest, self.max_tokens - len(tokens))
        whole = not answer.endswith("…")
        made = self.chat.encode(answer + "\0" if whole else answer[:-1])
        finish = "stop" if whole and len(made) <= room else "length"
        made = made[: max(room, 0)]
        log_probs = np.full(len(made), -1.0 - len(self.made), dtype=np.float32)
        spans = (VersionSpan(len(self.made), 0, len(made)),) if len(made) else ()
        generation = Generation(made, log_probs, finish, spans)  # type: ignore[arg-type]
        self.asked.append(tokens)
        self.made.append(generation)
        return generation


class ScriptedGroup:
    """All executions of a prompt, by the same script."""

    def __init__(self, answers: Sequence[str], count: int = 2, **given: Any) -> None:
        self.sessions = [ScriptedSession(answers, id=f"0-{number}", **given) for number in range(count)]
        self.prompt = self.sessions[0].prompt

    async def generate(self, tokens: Tokens, sampling: Sampling | None = None) -> list[Generation]:
        """One answer for each execution."""
        return [await session.generate(tokens, sampling) for session in self.sessions]


def check_rollout(
    name: str, params: Mapping[str, Any], answers: Sequence[str] = ("an answer",)
) -> list[list[Trajectory]]:
    """Trains what the policy made and nothing else, within the limits, and leaves the same every time.

    Returns the trajectories of each execution.
    """
    first, sessions = asyncio.run(_run(name, params, answers))
    again, _ = asyncio.run(_run(name, params, answers))
    assert len(first) == len(sessions), f"{name} left {len(first)} results of {len(sessions)} executions"
    for one, other, session in zip(first, again, sessions, strict=True):
        for trajectory in one:
            _check(name, trajectory, session)
        assert [_plain(each) for each in one] == [_plain(each) for each in other], (
            f"{name} leaves something else of the same answers the second time"
        )
    return first


def check_agent(
    name: str, params: Mapping[str, Any], answers: Sequence[str] = ("an answer",)
) -> list[list[Trajectory]]:
    """Keeps the contract of rollouts when it runs within `agent`. Returns the trajectories of executions."""
    return check_rollout("agent", {"agent": {"type": name, **params}}, answers)


def check_tool(
    name: str, params: Mapping[str, Any], calls: Sequence[Mapping[str, Any]] = ({}, {"no_such_argument": 1})
) -> list[str | None]:
    """Has a schema that templates can show, and answers a call with text or a ValueError with a reason.

    Returns the answers, None for a refused call.
    """
    tool = build("tools", name, params)
    function = tool.schema["function"]
    assert json.loads(json.dumps(tool.schema)) == tool.schema, f"{name}'s schema is not JSON"
    assert tool.schema["type"] == "function" and function["name"] and function["description"], (
        f"{name}'s schema is {tool.schema}"
    )
    assert function["parameters"]["type"] == "object", f"{name} takes arguments that are no JSON object"
    return asyncio.run(_answers(tool, name, calls))


async def _answers(tool: Any, name: str, calls: Sequence[Mapping[str, Any]]) -> list[str | None]:
    answers: list[str | None] = []
    try:
        for arguments in calls:
            try:
                answer = await tool.call(arguments)
            except ValueError as error:
                assert str(error), f"{name} refuses {arguments} without saying why"
                answer = None
            assert answer is None or isinstance(answer, str), f"{name} answers {answer!r}, not text"
            answers.append(answer)
    finally:
        if hasattr(tool, "close"):
            await tool.close()
    return answers


async def _run(
    name: str, params: Mapping[str, Any], answers: Sequence[str]
) -> tuple[list[list[Trajectory]], Sequence[ScriptedSession]]:
    rollout = build("rollouts", name, params)
    group = ScriptedGroup(answers)
    try:
        if hasattr(rollout, "run_group"):
            left: Sequence[Executed] = await rollout.run_group(group)
        else:
            left = [await rollout.run(session) for session in group.sessions]
    finally:
        if hasattr(rollout, "close"):
            await rollout.close()
    return [[one] if isinstance(one, Trajectory) else list(one) for one in left], group.sessions


def _check(name: str, trajectory: Trajectory, session: ScriptedSession) -> None:
    tokens, log_probs, mask, versions = trajectory.response()
    assert len(trajectory.prompt), f"{name} left a trajectory without a prompt"
    length = trajectory.sample_length()
    assert length <= session.max_tokens, f"{name} left {length} tokens, {session.max_tokens} are allowed"
    turns = [zip(turn.tokens, turn.log_probs, strict=True) for turn in session.made]
    made = [pair for turn in turns for pair in turn]
    for token, prob in zip(tokens[mask > 0], log_probs[mask > 0], strict=True):
        assert (token, prob) in made, f"{name} trains tokens that the policy did not make"
    assert not log_probs[mask == 0].any(), f"{name} has log-probs of tokens that the policy did not make"
    ends = [0, *(span.end for span in versions)]
    assert [span.start for span in versions] == ends[:-1] and ends[-1] == len(tokens), (
        f"{name}'s versions do not cover the response"
    )


def _plain(trajectory: Trajectory) -> tuple[Any, ...]:
    tokens, log_probs, mask, versions = trajectory.response()
    arrays = [each.tolist() for each in (trajectory.prompt, tokens, log_probs, mask)]
    return *arrays, versions, trajectory.status, trajectory.text, trajectory.info


CHECKS: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "rollouts": check_rollout,
    "tools": check_tool,
    "agents": check_agent,
}
"""By kind of plugin."""
