"""Steps 1 to 4 of the loop from files: the samples that another run saved."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Sample
from rlrun.runner.host.background import in_background
from rlrun.runner.records.metrics import rollout_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from rlrun.runner.rollouts.rollout_source import Batch


class SavedSource:
    """Reads the batch of each step from a run's `rollouts/` folder."""

    def __init__(
        self,
        run: RunFolder,
        first: int,
        last: int,
        vocab_size: int,
        *,
        fraction: float = 1.0,
        masked: bool = False,
        pairs: bool = False,
    ) -> None:
        """Reads steps `first` to `last`; raises ValueError if the run has no file of one of them.

        `fraction`: that of each step's groups which are trained on, at least one.
        `masked`: the spec takes log-probs over sampling masks, so the samples must have them. `pairs`: the
        algorithm trains on pairs, so each group must be one.
        """
        self._run = run
        self._fraction = fraction
        self._masked = masked
        self._pairs = pairs
        self._next_step = first
        self._vocab_size = vocab_size
        missing = [step for step in range(first, last + 1) if not self._file(step).is_file()]
        if missing:
            raise ValueError(
                f"debug.rollouts: {run.shown} has no samples of step {missing[0]}, and this job goes to step "
                f"{last}; lower trainer.steps, or choose a run that has them"
            )

    async def next(self, version: int) -> Batch:
        """Returns the samples of the next step. Raises ValueError if they cannot be trained on."""
        groups = await in_background(self._read, self._file(self._next_step))
        self._next_step += 1
        return Batch(groups, measure=partial(rollout_metrics, groups, version))

    def state(self) -> dict[str, Any]:
        """Returns the next step to read."""
        return {"saved_step": self._next_step}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns the state as it is now, to be called later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues at a saved step. ValueError for a checkpoint of a job that generated its samples."""
        if "saved_step" not in state:
            raise ValueError("the run so far generated its own samples: resume without debug.mode")
        self._next_step = state["saved_step"]

    async def close(self) -> None:
        """Does nothing: no file is open between two steps."""

    def _file(self, step: int) -> Path:
        return rollout_path(self._run.rollouts, step)

    def _read(self, path: Path) -> list[Group]:
        groups = _part(read_groups(path), self._fraction)
        highest = max((int(tokens.max()) for tokens in _token_arrays(groups) if len(tokens)), default=0)
        if highest >= self._vocab_size:
            raise ValueError(
                f"{self._run.shown} has samples with token {highest}, but the vocabulary of this model has "
                f"{self._vocab_size} tokens: the samples were made with another tokenizer"
            )
        if self._pairs and any(len(group.samples) != 2 for group in groups):
            raise ValueError(
                f"{self._run.shown} has groups that are not pairs of a preferred and a rejected response, "
                "which the algorithm trains on: choose a run of the same algorithm"
            )
        self._check_masks([sample for group in groups for sample in group.samples if len(sample.tokens)])
        return groups

    def _check_masks(self, samples: Sequence[Sample]) -> None:
        """Raises ValueError if samples have sampling masks that the spec does not use, or vice versa."""
        recorded = any(sample.sampling_mask is not None for sample in samples)
        if samples and recorded != self._masked:
            has, cure = ("no sampling masks", "remove") if self._masked else ("sampling masks", "set")
            raise ValueError(
                f"{self._run.shown} has samples with {has}, other than this spec asks for: {cure} "
                "rollout.top_p, top_k and sampling_mask as that run had them"
            )


def _part(groups: Sequence[Group], fraction: float) -> list[Group]:
    """Returns this fraction of the groups, at equal distances."""
    count = max(1, round(len(groups) * fraction)) if groups else 0
    return [groups[number * len(groups) // count] for number in range(count)]


def _token_arrays(groups: Sequence[Group]) -> Iterator[NDArray[np.int32]]:
    """Yields the prompt tokens and the response tokens of each sample."""
    for group in groups:
        for sample in group.samples:
            yield from (sample.prompt.tokens, sample.tokens)
