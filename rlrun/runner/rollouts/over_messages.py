"""Rollouts of a model that is reached by chat messages: one answer per prompt, or a conversation with tools.

row's messages ─▶ ChatModel ─▶ answer ─▶ calls? ─no─▶ trajectory with a text and no tokens
                     ▲                     │ yes
                     └────── results ◀─── tools
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rlrun.models.json_files import parse_json
from rlrun.plugins.failures import PolicyError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.images import Image
from rlrun.plugins.rollouts.multi_turn_tools import MultiTurnToolsParams
from rlrun.plugins.rollouts.tool_box import ToolBox
from rlrun.plugins.rollouts.tool_calls import Malformed, ToolCall
from rlrun.plugins.types import Row, Status
from rlrun.runner.contracts.chat_answers import ChatAnswer, ChatModel
from rlrun.runner.rollouts.sessions import PolicyGroup, PolicySession
from rlrun.runner.rollouts.settings import RolloutSettings
from rlrun.specs.sections.rollout import RolloutFunctionSpec


class NoTokenizer:
    """The tokenizer of a model whose tokens are not known: there is nothing to decode."""

    def decode_batch(self, batch: Sequence[Any], *, special: bool = False) -> list[str]:
        """Returns the texts of failed trajectories, which have no turns: none."""
        assert not batch, "answers of a chat server are texts"
        return []


class NoEngines:
    """The engines of a job whose model is served elsewhere."""

    version: int | None = None

    async def generate(self, request: object) -> list[Any]:
        """Raises AssertionError: rollouts over messages send no tokens to engines."""
        raise AssertionError("a model that is served elsewhere takes messages")


def over_messages(
    model: ChatModel, function: RolloutFunctionSpec, settings: RolloutSettings, fields: Mapping[str, Any]
) -> "SingleAnswer | ToolConversation":
    """Returns the rollout over messages that does what the spec's rollout does over tokens.

    `fields`: further fields of every request.
    """
    body = {**sampling_fields(settings), **fields}
    if function.type == "single_turn":
        return SingleAnswer(model, body)
    assert function.type == "multi_turn_tools", "validation refuses other rollouts"
    params = MultiTurnToolsParams.model_validate(function.params)
    return ToolConversation(model, params, body)


def sampling_fields(settings: RolloutSettings) -> dict[str, Any]:
    """Returns the sampling of a request in OpenAI's names; what has its default is not sent.

    `top_k` is not OpenAI's, but vLLM, SGLang and llama.cpp take it, and OpenAI refuses it.
    """
    sampling = settings.sampling
    return {
        "max_tokens": min(sampling.max_new_tokens, settings.max_turn_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **({"top_k": sampling.top_k} if sampling.top_k > 0 else {}),
        **({"stop": list(sampling.stop)} if sampling.stop else {}),
    }


@dataclass(frozen=True, slots=True)
class SingleAnswer:
    """Lets the model answer the prompt once; all samples of a prompt are asked for together."""

    model: ChatModel
    body: Mapping[str, Any]

    async def run_group(self, group: PolicyGroup) -> list[Trajectory]:
        """Returns a trajectory for each answer."""
        body = {**self.body, "messages": messages_of(group.prompt.row)}
        answers = await self.model.answers(body, [session.seed for session in group.sessions])
        return [_trajectory(group, [answer]) for answer in answers]


class ToolConversation:
    """The model may call tools, which it learns of as `tools` of each request."""

    def __init__(self, model: ChatModel, params: MultiTurnToolsParams, body: Mapping[str, Any]) -> None:
        self._model = model
        self._params = params
        self._box = ToolBox(params.tools, params.tool_timeout, params.max_result_tokens)
        self._body = {**body, "tools": self._box.schemas}

    async def run(self, session: PolicySession) -> Trajectory:
        """Returns one conversation; `info` has its turns, calls and failed calls, and what tools noted."""
        return await self._box.during(session, self._talk)

    async def close(self) -> None:
        """Ends the tools."""
        await self._box.close()

    async def _talk(self, session: PolicySession, box: ToolBox) -> Trajectory:
        params, messages = self._params, messages_of(session.prompt.row)
        answers: list[ChatAnswer] = []
        called, failed, end = 0, 0, dict[str, float]()
        while True:
            body = {**self._body, "messages": messages}
            [answer] = await self._model.answers(body, [session.seed + len(answers)])
            answers.append(answer)
            if answer.is_cut or not answer.calls:
                break
            calls = [_call(call) for call in answer.calls]
            try:
                results = await box.answer(calls, params.max_calls, None)
            except PolicyError as error:
                end = error.info()
                break
            called += len(results)
            failed += sum(result.failed for result in results)
            if len(answers) == params.max_turns:
                answers[-1] = replace(answer, is_cut=True)
                break
            messages = [*messages, answer.message]
            messages += [
                {"role": "tool", "tool_call_id": call.get("id"), "content": result.message["content"]}
                for call, result in zip(answer.calls, results, strict=True)
            ]
        trajectory = _trajectory(session, answers)
        if params.text == "last":
            trajectory.text = next((answer.text for answer in reversed(answers) if answer.text), "")
        trajectory.info |= {"turns": len(answers), "tool_calls": called, "tool_errors": failed, **end}
        return trajectory


def messages_of(row: Row) -> list[Mapping[str, Any]]:
    """Returns the messages of a row, with images as data URLs. Raises ValueError for one image too few."""
    if isinstance(row.prompt, str):
        return [{"role": "user", "content": row.prompt}]
    images = iter(row.images)
    return [{**message, "content": _content(message.get("content"), images)} for message in row.prompt]


def _content(content: Any, images: Iterator[Image]) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    return [_image_part(images) if part.get("type") == "image" else part for part in content]


def _image_part(images: Iterator[Image]) -> Mapping[str, Any]:
    image = next(images, None)
    if image is None:
        raise ValueError("the messages name more images than the row has")
    return {"type": "image_url", "image_url": {"url": image.data_url()}}


def _call(call: Mapping[str, Any]) -> ToolCall | Malformed:
    """Returns a call as tools take it, or what is wrong with it."""
    try:
        name, arguments = call["function"]["name"], call["function"].get("arguments")
        arguments = parse_json(arguments or "{}") if isinstance(arguments, str | None) else arguments
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return Malformed(f"a tool call that cannot be read: {error}")
    if not isinstance(arguments, dict):
        return Malformed("the arguments of a tool call must be a JSON object")
    return ToolCall(str(name), arguments)


def _trajectory(owner: PolicyGroup | PolicySession, answers: Sequence[ChatAnswer]) -> Trajectory:
    """Returns a trajectory without tokens, whose text is that of the answers."""
    trajectory = Trajectory(owner.prompt.tokens)
    trajectory.text = "\n".join(answer.text for answer in answers)
    trajectory.status = Status.TRUNCATED if answers[-1].is_cut else Status.COMPLETED
    counts = [answer.num_tokens for answer in answers]
    if None not in counts:
        trajectory.info["completion_tokens"] = sum(cast(list[int], counts))
    reasoning = [answer.reasoning for answer in answers if answer.reasoning]
    if reasoning:
        trajectory.info["reasoning"] = "\n".join(reasoning)
    return trajectory
