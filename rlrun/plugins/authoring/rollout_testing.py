"""A policy with scripted answers, and the contracts of rollouts, agents and tools, for plugin authors' tests.


session = ScriptedSession(["<tool_call>…</tool_call>", "42"])
trajectory = await rollout.run(session)
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.authoring import contracts
from rlrun.plugins.engines import Address, ServedEngine
from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.images import Image, PlacedImage
from rlrun.plugins.protocols import Executed
from rlrun.plugins.registry import build
from rlrun.plugins.types import Message, Prompt, Row, VersionSpan

Tokens = NDArray[np.int32]
END = 0
"""The token that ends an answer of a `ScriptedSession`."""
IMAGE = ord("\ufffc")
"""The placeholder of images."""
IMAGE_TOKENS = 3
"""How many placeholders an image takes."""
_TASKS = 3
"""How many tasks of an environment are run."""


class ScriptedSession:
    """An execution whose policy gives scripted answers, and repeats the last one once they are used up."""

    def __init__(
        self,
        answers: Sequence[str],
        *,
        prompt: str = "a question",
        row: Row | None = None,
        max_new_tokens: int = 4096,
        max_turn_tokens: int | None = None,
        id: str = "0-0",
        engines: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """An answer that ends in `…` is cut off there (finish `length`); others get the end token.

        `max_turn_tokens` limits one answer; None means that only `max_new_tokens` does. `engines` has
        the answers of models of `[[engines]]`, by their names.
        """
        self.chat = LetterChat()
        images = self.chat.place(() if row is None else row.images)
        content = [{"type": "image"}] * len(images) + [{"type": "text", "text": prompt}]
        tokens = self.chat.render([{"role": "user", "content": content}], images=images)
        self.prompt = Prompt(row or Row("0", prompt), 0, tokens, images)
        self.id = id
        self.seed = 7
        self.sampling = Sampling(max_new_tokens)
        self.max_tokens = len(tokens) + max_new_tokens
        self.max_turn_tokens = max_turn_tokens or max_new_tokens
        self.version = 0
        self.made: list[Generation] = []
        """The generations so far, one per answer."""
        self.asked: list[Tokens] = []
        """The tokens that each answer was generated from."""
        self.asked_images: list[tuple[PlacedImage, ...]] = []
        """The images of these tokens."""
        self._answers = answers
        self._engines = {name: ScriptedEngine(texts) for name, texts in (engines or {}).items()}

    def engine(self, name: str) -> "ScriptedEngine":
        """Returns a model of `[[engines]]` with scripted answers. Raises ValueError for an unknown name."""
        if name not in self._engines:
            raise ValueError(f'no table of [[engines]] is named "{name}"')
        return self._engines[name]

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> Generation:
        """Returns the next answer, cut to the limits. The n-th answer's tokens all have log-prob -n."""
        await asyncio.sleep(0)
        answer = self._answers[min(len(self.made), len(self._answers) - 1)]
        room = min(self.max_turn_tokens, self.max_tokens - len(tokens))
        room = (sampling or self.sampling).limited(room).max_new_tokens
        is_complete = not answer.endswith("…")
        response = self.chat.encode(answer + "\0" if is_complete else answer[:-1])
        finish = "stop" if is_complete and len(response) <= room else "length"
        response = response[: max(room, 0)]
        log_probs = np.full(len(response), -1.0 - len(self.made), dtype=np.float32)
        spans = (VersionSpan(len(self.made), 0, len(response)),) if len(response) else ()
        generation = Generation(response, log_probs, finish, spans)  # type: ignore[arg-type]
        self.asked.append(tokens)
        self.asked_images.append(self.prompt.images if images is None else tuple(images))
        self.made.append(generation)
        return generation


class ScriptedEngine(ServedEngine):
    """A model of `[[engines]]` with scripted answers, which repeats the last one once they are used up."""

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__(Address(""), 0)
        self.asked: list[Mapping[str, Any]] = []
        """The requests so far."""
        self._answers = answers

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the next answer as a chat completion."""
        text = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(body)
        return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


class ScriptedGroup:
    """All executions of a prompt, each with the same scripted answers."""

    def __init__(self, answers: Sequence[str], count: int = 2, **options: Any) -> None:
        """`options` are those of `ScriptedSession`."""
        self.sessions = [ScriptedSession(answers, id=f"0-{number}", **options) for number in range(count)]
        self.prompt = self.sessions[0].prompt

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> list[Generation]:
        """Returns the next answer of each execution."""
        return [await session.generate(tokens, sampling, images) for session in self.sessions]


def check_rollout(
    name: str, params: Mapping[str, Any], answers: Sequence[str] = ("an answer",), row: Row | None = None
) -> list[list[Trajectory]]:
    """Asserts that a rollout trains only tokens that the policy generated, keeps the limits, and gives the
    same trajectories for the same answers. `row` is the row of the prompt; None: one without metadata.

    Returns the trajectories of each execution.
    """
    first, sessions = asyncio.run(_run(name, params, answers, row))
    second_run, _ = asyncio.run(_run(name, params, answers, row))
    assert len(first) == len(sessions), f"{name} gives {len(first)} results for {len(sessions)} executions"
    for trajectories, repeated, session in zip(first, second_run, sessions, strict=True):
        for trajectory in trajectories:
            _check(name, trajectory, session)
        assert [*map(_plain, trajectories)] == [*map(_plain, repeated)], (
            f"{name} gives other trajectories for the same answers the second time"
        )
    return first


def check_agent(
    name: str, params: Mapping[str, Any], answers: Sequence[str] = ("an answer",)
) -> list[list[Trajectory]]:
    """Asserts that an agent keeps the contract of rollouts when the rollout `agent` runs it.

    Returns the trajectories of each execution.
    """
    return check_rollout("agent", {"agent": {"type": name, **params}}, answers)


def check_environment(
    name: str, params: Mapping[str, Any], answers: Sequence[str] = ("an answer", "", "1")
) -> list[list[Trajectory]]:
    """Asserts that an environment has tasks, the same every time, and runs them in a process of its own: the
    same answers to the same task give the same turns and a finite reward.

    Returns the trajectories of each execution of the first tasks.
    """
    source = {"environment": {"type": name, **params}}
    rows = contracts.same_rows(
        name, build("data", "environment", source), build("data", "environment", source)
    )
    json.dumps([row.metadata for row in rows])
    executed = [
        executions for row in rows[:_TASKS] for executions in check_rollout("environment", {}, answers, row)
    ]
    for trajectory in (trajectory for trajectories in executed for trajectory in trajectories):
        reward = trajectory.info.get("reward")
        assert isinstance(reward, int | float), f"{name} gave no reward: {trajectory.info}"
    return executed


def check_tool(
    name: str, params: Mapping[str, Any], calls: Sequence[Mapping[str, Any]] = ({}, {"no_such_argument": 1})
) -> list[str | None]:
    """Asserts that a tool has a schema that templates can show, and answers each call with text or a
    ValueError with a reason.

    Returns the answers, with None for a refused call.
    """
    tool = build("tools", name, params)
    function = tool.schema["function"]
    assert json.loads(json.dumps(tool.schema)) == tool.schema, f"{name}'s schema is not JSON"
    assert tool.schema["type"] == "function" and function["name"] and function["description"], (
        f"{name}'s schema is {tool.schema}"
    )
    assert function["parameters"]["type"] == "object", f"{name}'s arguments must be a JSON object"
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
    name: str, params: Mapping[str, Any], answers: Sequence[str], row: Row | None
) -> tuple[list[list[Trajectory]], Sequence[ScriptedSession]]:
    rollout = build("rollouts", name, params)
    group = ScriptedGroup(answers, row=row)
    try:
        if hasattr(rollout, "run_group"):
            executed: Sequence[Executed] = await rollout.run_group(group)
        else:
            executed = [await rollout.run(session) for session in group.sessions]
    finally:
        if hasattr(rollout, "close"):
            await rollout.close()
    return [
        [result] if isinstance(result, Trajectory) else list(result) for result in executed
    ], group.sessions


def _check(name: str, trajectory: Trajectory, session: ScriptedSession) -> None:
    tokens, log_probs, mask, versions = trajectory.response()
    assert len(trajectory.prompt), f"{name} gives a trajectory without a prompt"
    length = trajectory.sample_length()
    assert length <= session.max_tokens, f"{name} gives {length} tokens, {session.max_tokens} are allowed"
    turns = [zip(turn.tokens, turn.log_probs, strict=True) for turn in session.made]
    generated = [pair for turn in turns for pair in turn]
    for token, log_prob in zip(tokens[mask > 0], log_probs[mask > 0], strict=True):
        assert (token, log_prob) in generated, f"{name} trains tokens that the policy did not generate"
    assert not log_probs[mask == 0].any(), f"{name} has log-probs of tokens that the policy did not generate"
    ends = [0, *(span.end for span in versions)]
    assert [span.start for span in versions] == ends[:-1] and ends[-1] == len(tokens), (
        f"{name}'s versions do not cover the response"
    )


def _plain(trajectory: Trajectory) -> tuple[Any, ...]:
    tokens, log_probs, mask, versions = trajectory.response()
    arrays = [array.tolist() for array in (trajectory.prompt, tokens, log_probs, mask)]
    return *arrays, versions, trajectory.status, trajectory.text, trajectory.info


CHECKS: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "rollouts": check_rollout,
    "tools": check_tool,
    "agents": check_agent,
    "environments": check_environment,
}
"""The check of each kind of plugin that answers for a policy."""


class LetterChat:
    """A tokenizer with one token per character, and a template with one line per message.

    The line is `role: content` and the end token; a tool's message has no end token. A `\\0` in a message's
    content is removed, so that content cannot end a turn.
    """

    eos_token_ids = (END,)
    vocab_size = sys.maxunicode + 1
    image_placeholder = IMAGE

    def encode(self, text: str) -> Tokens:
        """Returns one token per character; `\\0` becomes the end token."""
        return np.array([ord(letter) for letter in text], dtype=np.int32)

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """Returns the texts, with end tokens as `\\0` if `special`."""
        return ["".join(chr(token) for token in tokens if special or token != END) for tokens in batch]

    def plain(self, text: str) -> str:
        """Returns the text without end tokens."""
        return text.replace("\0", "")

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns the images, each with the same number of tokens."""
        return tuple(PlacedImage(image, IMAGE, IMAGE_TOKENS) for image in images)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        images: Sequence[PlacedImage] = (),
    ) -> Tokens:
        """Returns the tokens of the tools as JSON, one line per message, and `assistant: `."""
        listed = f"tools: {json.dumps(list(tools))}\n" if tools else ""
        return self._rendered(listed, messages, images)

    def follow_up(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        images: Sequence[PlacedImage] = (),
    ) -> tuple[Tokens, Tokens]:
        """Returns the end token, and the tokens of one line per message and `assistant: `."""
        return self.encode("\0"), self._rendered("\n", messages, images)

    def _rendered(self, start: str, messages: Sequence[Message], images: Sequence[PlacedImage]) -> Tokens:
        text = start + "".join(map(_line, messages)) + "assistant: "
        if text.count(chr(IMAGE)) != len(images) * IMAGE_TOKENS:
            raise ValueError(f"the messages do not have {len(images)} images")
        return self.encode(text)


def _line(message: Message) -> str:
    end = "" if message["role"] == "tool" else "\0"
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    text = "".join(
        part["text"].translate({END: None, IMAGE: None})
        if part["type"] == "text"
        else chr(IMAGE) * IMAGE_TOKENS
        for part in parts
    )
    return f"{message['role']}: {text}{end}\n"
