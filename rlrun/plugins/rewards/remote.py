"""Rewards that your own service computes, with one request per sample or one per group."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.plugins.rewards.http_client import HttpClient, HttpParams, number_or_table
from rlrun.plugins.types import Rewarded, Sample


class RemoteParams(HttpParams):
    """Which service computes the reward."""


class Remote:
    """POSTs `{"prompt", "response", "label"}` and reads a number from the answer, or a table (see `key`).

    A failed request is repeated after growing pauses, until `attempts` or `scoring.timeout` is reached. Raise
    `scoring.timeout` for a service that may be down for a while.
    """

    Params = RemoteParams
    api_version = 1

    def __init__(self, params: RemoteParams) -> None:
        self.params = params
        self._client = HttpClient(params)

    async def score(self, sample: Sample) -> Rewarded:
        """Returns the service's reward. Raises InfrastructureError when the service returns none."""
        result: Rewarded = await self._client.post(self.params.url, body_of(sample), number_or_table)
        return result


class RemoteGroup:
    """POSTs `{"samples": [{"prompt", "response", "label"}, …]}`, the samples of one prompt in one request.

    The answer is a list with a number, or a table, for each sample in order.
    """

    Params = RemoteParams
    api_version = 1

    def __init__(self, params: RemoteParams) -> None:
        self.params = params
        self._client = HttpClient(params)

    async def score_group(self, samples: Sequence[Sample]) -> Sequence[Rewarded]:
        """Returns the service's rewards. Raises InfrastructureError when the service returns none."""

        def read(answer: Any) -> list[Rewarded]:
            if not isinstance(answer, list) or len(answer) != len(samples):
                raise ValueError(f"not a list of {len(samples)} rewards: {answer}")
            return [number_or_table(reward) for reward in answer]

        body = {"samples": [body_of(sample) for sample in samples]}
        results: list[Rewarded] = await self._client.post(self.params.url, body, read)
        return results


def body_of(sample: Sample) -> Mapping[str, Any]:
    """Returns a sample as the table that is sent to services."""
    row = sample.prompt.row
    prompt = row.prompt if isinstance(row.prompt, str) else [dict(message) for message in row.prompt]
    return {"prompt": prompt, "response": sample.text, "label": row.label}
