"""Asks a retrieval server for passages: a dense index that a host of yours keeps in memory."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlrun.plugins.rewards.http_client import HttpClient, HttpParams
from rlrun.plugins.tools.schema import function_schema
from rlrun.plugins.tools.search import SearchArguments

logger = logging.getLogger(__name__)


class RetrieverParams(HttpParams):
    """The server's address, and the size of a result."""

    attempts: int = Field(default=3, ge=1)
    """Largest number of requests for one answer, including the first. The rollout's `tool_timeout` may end a
    call earlier."""
    connections: int = Field(default=64, ge=1)
    """Largest number of requests in flight."""
    name: str = Field(default="search", pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    """Name of the tool, as the policy calls it."""
    results: int = Field(default=3, ge=1)
    """Number of passages in a result."""
    about: str = "Searches a collection of texts and returns the passages that fit best."
    """Description of the tool, which the policy reads."""


class Retriever:
    """Returns the passages that a retrieval server of Search-R1 (Jin et al., 2025) finds for a query.

    The server gets `{"queries": ["…"], "topk": 3, "return_scores": false}`, and answers `{"result": [[…]]}`,
    where a passage is `{"contents": "title\\ntext"}`. If no request of `attempts` brings such
    an answer, the execution fails.
    """

    Params = RetrieverParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"url": "http://127.0.0.1:9/retrieve"}

    def __init__(self, params: RetrieverParams) -> None:
        self._params = params
        self.schema = function_schema(params.name, params.about, SearchArguments)
        self._client = HttpClient(params, tell=logger.info)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Returns the passages, numbered: `Doc 1(Title: …) …`, as slime's example writes them.

        Raises ValueError for arguments that do not fit, and InfrastructureError if the server does not
        answer.
        """
        query = SearchArguments.model_validate(arguments).query
        body = {"queries": [query], "topk": self._params.results, "return_scores": False}
        passages: list[str] = await self._client.post(self._params.url, body, _read)
        lines = (contents.partition("\n") for contents in passages)
        return "\n".join(
            f"Doc {number}(Title: {title}) {text}" for number, (title, _, text) in enumerate(lines, 1)
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _read(answer: Any) -> list[str]:
    """Returns the passages of the only query. Raises ValueError for an answer of another form."""
    try:
        [found] = answer["result"]
        return [str(passage.get("document", passage)["contents"]) for passage in found]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError('the answer must be {"result": [[{"contents": "title\\ntext"}]]}') from None
