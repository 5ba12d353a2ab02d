"""Batches for algorithms without a rollout (SFT, DPO), whose samples come from the data.

The group of a row has one sample for a demonstration, two for a pair of responses, and several for a chat
whose template changes earlier turns.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Prompt, Sample, Status
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.rollout_source import Batch


class DemonstrationSource:
    """Returns batches of demonstrations in the order of the data."""

    def __init__(self, groups: Prefetcher[Group]) -> None:
        self._groups = groups

    async def next(self, version: int) -> Batch:
        """Returns the next batch; `version` does not matter."""
        return Batch(await self._groups.next())

    def state(self) -> dict[str, Any]:
        """Returns the position in the data."""
        return self._groups.state()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns the state as it is now, to be called later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved position."""
        await self._groups.restore(state)

    async def close(self) -> None:
        """Stops reading ahead."""
        await self._groups.close()


def demonstration(
    prompt: Prompt, number: int, response: NDArray[np.int32], mask: NDArray[np.float32], text: str
) -> Sample:
    """Returns a response of the data as a sample; as no engine generated it, it has no log-probs or versions.

    The responses of one row share an execution id: a pair counts once, and so does a chat of several samples.
    """
    return Sample(
        id=f"{prompt.index}-{number}",
        execution_id=str(prompt.index),
        prompt=prompt,
        tokens=response,
        log_probs=np.zeros(len(response), dtype=np.float32),
        loss_mask=mask,
        versions=(),
        status=Status.COMPLETED,
        text=text,
    )
