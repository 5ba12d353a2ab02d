"""Batches for algorithms that need no rollout: a row's demonstration is a group of one finished sample."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Prompt, Sample, Status
from rlrun.runner.ahead import ReadAhead
from rlrun.runner.rollout import Batch


class DemonstrationSource:
    """Batches of demonstrations in the order of the data."""

    def __init__(self, groups: ReadAhead[Group]) -> None:
        self._groups = groups

    async def next(self, version: int) -> Batch:
        """The next batch, whatever the weights."""
        return Batch(await self._groups.next())

    def state(self) -> dict[str, Any]:
        """The place in the data."""
        return self._groups.state()

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        await self._groups.restore(state)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._groups.close()


def demonstration(prompt: Prompt, response: NDArray[np.int32], text: str) -> Group:
    """A row's demonstration as the loop takes it; no engine made it: no log-probs, no version."""
    length = len(response)
    sample = Sample(
        id=f"{prompt.index}-0",
        prompt=prompt,
        tokens=response,
        log_probs=np.zeros(length, dtype=np.float32),
        loss_mask=np.ones(length, dtype=np.float32),
        versions=(),
        status=Status.COMPLETED,
        text=text,
    )
    return Group(prompt, [sample])
