"""Scores stored samples again, with the rewards of the spec in a process of their own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rlrun.plugins.types import Sample
from rlrun.runner.audit.check import NotChecked
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.scoring import RewardSpec

REPEATABLE = (
    *("exact_match", "math", "deepscaler", "dapo", "f1", "gpqa"),
    *("format", "length", "repetition", "reasoning_gym"),
)
"""Rewards that read nothing but the response and the row, so that they give the same value each time."""
READ_METADATA = ("reasoning_gym",)
"""Those among them that read the row's metadata, which only whole records have."""


class Rescorer:
    """The rewards of a run; their process starts with the first samples."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._runner = asyncio.Runner()
        self._scorer: Scorer | None = None

    def score(self, samples: Sequence[Sample], rewards: Sequence[RewardSpec]) -> list[Sample]:
        """Returns copies of samples, scored again. Raises NotChecked if a reward need not repeat itself."""
        others = [reward.type for reward in rewards if reward.type not in REPEATABLE or reward.type_key]
        if others:
            raise NotChecked(f"the reward {others[0]} may give another value the second time")
        if any(reward.type in READ_METADATA for reward in rewards) and not all(
            sample.prompt.row.metadata for sample in samples
        ):
            raise NotChecked("rewards read the rows' metadata (debug.save_rollouts stores them)")
        copies = [replace(sample, reward=float("nan"), rewards={}, failure=None) for sample in samples]
        try:
            self._runner.run(self._score(copies, rewards))
        except JobError as error:
            raise NotChecked(f"the rewards cannot be computed again: {error}") from None
        return copies

    async def _score(self, samples: Sequence[Sample], rewards: Sequence[RewardSpec]) -> None:
        if self._scorer is None:
            spec = self._spec
            scoring = spec.scoring.model_copy(update={"workers": 1, "on_error": "drop"})
            evaluated = [dataset.rewards for dataset in spec.eval.datasets]
            self._scorer = Scorer(spec.rewards, scoring, evaluated=evaluated)
            await self._scorer.start()
        await self._scorer.grader_of(rewards).score(samples)

    def close(self) -> None:
        """Ends the process."""
        if self._scorer is not None:
            self._runner.run(self._scorer.close())
        self._runner.close()
