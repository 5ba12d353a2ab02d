"""The wires that the endpoint speaks."""

from typing import Any

from rlrun.plugins.rollouts.agent.request import AgentRequest, RefusedRequest
from rlrun.plugins.rollouts.agent.wires.anthropic_messages import AnthropicMessages
from rlrun.plugins.rollouts.agent.wires.chat_completions import ChatCompletions
from rlrun.plugins.rollouts.agent.wires.openai_responses import OpenAIResponses
from rlrun.plugins.rollouts.agent.wires.token_ids import TokenIds
from rlrun.plugins.rollouts.agent.wires.wire import Wire

WIRES: tuple[Wire, ...] = (ChatCompletions(), AnthropicMessages(), OpenAIResponses(), TokenIds())


def read_request(wire: Wire, body: Any) -> AgentRequest:
    """Returns what a request asks for. Raises RefusedRequest for every body that cannot be served."""
    try:
        return wire.read(body)
    except (KeyError, TypeError, AttributeError) as error:  # a part is missing, or of another type
        raise RefusedRequest(
            f"the body is not of the wire's form: {type(error).__name__}: {error}"
        ) from error
