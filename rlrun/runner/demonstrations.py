"""Batches for algorithms that need no rollout: a row's demonstration is a group of one finished sample, a pair of
responses a group of two.
"""

from collections.abc import Sequence
from dataclasses import replace
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
    """A row's demonstration as the loop takes it."""
    return Group(prompt, [_sample(prompt, 0, response, text)])


def preference(prompt: Prompt, responses: Sequence[NDArray[np.int32]], texts: Sequence[str]) -> Group:
    """A row's preferred and rejected response, as one execution: together they count once."""
    pair = zip(responses, texts, strict=True)
    samples = [_sample(prompt, number, *one) for number, one in enumerate(pair)]
    return Group(prompt, [replace(sample, execution_id=str(prompt.index)) for sample in samples])


def _sample(prompt: Prompt, number: int, response: NDArray[np.int32], text: str) -> Sample:
    """No engine made it: no log-probs, no version."""
    length = len(response)
    return Sample(
        id=f"{prompt.index}-{number}",
        prompt=prompt,
        tokens=response,
        log_probs=np.zeros(length, dtype=np.float32),
        loss_mask=np.ones(length, dtype=np.float32),
        versions=(),
        status=Status.COMPLETED,
        text=text,
    )
