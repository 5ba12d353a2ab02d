"""Batches for algorithms that need no rollout: a row's demonstration is a group of one finished sample, a
pair of responses a group of two, a chat whose template changes earlier turns a group of several.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Prompt, Sample, Status
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.synchronous import Batch


class DemonstrationSource:
    """Batches of demonstrations in the order of the data."""

    def __init__(self, groups: Prefetcher[Group]) -> None:
        self._groups = groups

    async def next(self, version: int) -> Batch:
        """The next batch, whatever the weights."""
        return Batch(await self._groups.next())

    def state(self) -> dict[str, Any]:
        """The place in the data."""
        return self._groups.state()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        await self._groups.restore(state)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._groups.close()


def demonstration(
    prompt: Prompt, number: int, response: NDArray[np.int32], mask: NDArray[np.float32], text: str
) -> Sample:
    """A row's response as the loop takes it; no engine made it: no log-probs, no version.

    Responses of one row are one execution: a pair counts once, and so does a chat of several samples.
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
