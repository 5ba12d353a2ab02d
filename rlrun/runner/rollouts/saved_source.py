"""Steps 1 to 4 of the loop from a file: the samples that another run saved."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.plugins.types import Group, Sample
from rlrun.runner.host.background import in_background
from rlrun.runner.records.metrics import rollout_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import read_groups, rollout_file
from rlrun.runner.rollouts.synchronous import Batch


class SavedSource:
    """Batches of a run's `rollouts/`, a file a step."""

    def __init__(
        self, run: RunFolder, first: int, last: int, vocab_size: int, *, masked: bool = False
    ) -> None:
        """Steps `first` to `last`; `masked`: the spec's log-probs are taken over sampling masks. ValueError
        where the run has no file of one of the steps.
        """
        self._run = run
        self._masked = masked
        self._next = first
        self._vocab_size = vocab_size
        missing = [step for step in range(first, last + 1) if not self._file(step).is_file()]
        if missing:
            raise ValueError(
                f"debug.rollouts: {run.shown} has no samples of step {missing[0]}, and this job goes to step "
                f"{last}; lower trainer.steps, or take a run that has them"
            )

    async def next(self, version: int) -> Batch:
        """The samples of the next step. ValueError where they cannot be trained on."""
        groups = await in_background(self._read, self._file(self._next))
        self._next += 1
        return Batch(groups, measure=partial(rollout_metrics, groups, version))

    def state(self) -> dict[str, Any]:
        """The step that is next."""
        return {"saved_step": self._next}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on at a step. ValueError for a checkpoint of a job that generated."""
        if "saved_step" not in state:
            raise ValueError("the run so far generated its own samples: resume without debug.mode")
        self._next = state["saved_step"]

    async def close(self) -> None:
        """Nothing is open between two steps."""

    def _file(self, step: int) -> Path:
        return rollout_file(self._run.rollouts, step)

    def _read(self, path: Path) -> list[Group]:
        groups = read_groups(path)
        highest = max(
            (int(tokens.max()) for group in groups for tokens in _tokens(group) if len(tokens)), default=0
        )
        if highest >= self._vocab_size:
            raise ValueError(
                f"{self._run.shown} has samples of token {highest}, and this model knows {self._vocab_size}: "
                "they were made with another tokenizer"
            )
        self._check_masks([sample for group in groups for sample in group.samples if len(sample.tokens)])
        return groups

    def _check_masks(self, samples: Sequence[Sample]) -> None:
        """ValueError where samples were drawn from other tokens than those that the spec trains on."""
        recorded = any(sample.sampling_mask is not None for sample in samples)
        if samples and recorded != self._masked:
            has, cure = ("no sampling masks", "remove") if self._masked else ("sampling masks", "set")
            raise ValueError(
                f"{self._run.shown} has samples with {has}, other than this spec asks for: {cure} "
                "rollout.top_p, top_k and sampling_mask as that run had them"
            )


def _tokens(group: Group) -> list[Any]:
    return [tokens for one in group.samples for tokens in (one.prompt.tokens, one.tokens)]
