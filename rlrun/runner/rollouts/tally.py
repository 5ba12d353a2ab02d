"""Counts what happens to prompts between two batches: the metrics of a batch, or why a rollout starved."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rlrun.plugins.failures import Failure
from rlrun.plugins.generation import Generation
from rlrun.plugins.types import Group, Sample, last_samples
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.records.metrics import add_prefix, failure_counts, failure_metrics, rollout_metrics
from rlrun.runner.rollouts.filtering import FilterResult, Reason
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.specs.problems.codes import Code


@dataclass(slots=True)
class Tally:
    """Counts of groups, samples and tokens since the last batch."""

    submitted: int = 0
    """Groups whose generation was started."""
    executions: int = 0
    """Executions that ended."""
    lost: int = 0
    """Executions among these without a reward, because they failed or ran out of time."""
    retried: int = 0
    """Executions among these that ran again after a failure of the infrastructure."""
    failures: Counter[Failure] = field(default_factory=Counter)
    """Samples that failed, by type."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that engines took from their prefix caches."""
    generated_tokens: int = 0
    generations: int = 0
    """Number of generations that engines returned: one per turn of a sample."""
    retractions: int = 0
    """How often engines dropped a sample's keys and values because their caches were full."""
    drafted: int = 0
    """Tokens that engines guessed and verified."""
    accepted: int = 0
    """Guessed tokens that were right."""
    accept_lengths: list[float] = field(default_factory=list)
    """Tokens per decoding pass, of each generation of more than one token."""
    dropped: Counter[Reason] = field(default_factory=Counter)
    """Groups dropped, by reason."""
    dropped_samples: Counter[Reason] = field(default_factory=Counter)
    masked_samples: Counter[Reason] = field(default_factory=Counter)
    failure: str = ""
    """The reason of the last execution or request that failed."""
    scored: list[Group] = field(default_factory=list)
    """Every scored group, kept or dropped; the metrics are computed over these."""
    removed: list[Group] = field(default_factory=list)
    """The samples that are not trained on, by prompt; some of them are saved for people to read."""
    steering: Mapping[str, float] = field(default_factory=dict)
    """Metrics of a data source that chooses its rows."""
    execution_limit: Mapping[str, float] = field(default_factory=dict)
    """The metric of the executions' limit, if full caches lowered it."""
    spare: list[Group] = field(default_factory=list)
    """Groups that a filter with `keep_when_short` dropped, used rather than letting the step starve."""

    def count_request(self, request: GenerateRequest, generations: Sequence[Generation]) -> None:
        """Counts the tokens of a request and of its generations."""
        self.prompt_tokens += len(request.tokens) * len(generations)
        self.cached_tokens += sum(generation.cached_tokens for generation in generations)
        self.generated_tokens += sum(len(generation.tokens) for generation in generations)
        self.generations += len(generations)
        self.retractions += sum(generation.retractions for generation in generations)
        self.drafted += sum(generation.drafted for generation in generations)
        self.accepted += sum(generation.accepted for generation in generations)
        self.accept_lengths += [len(made.tokens) / made.passes for made in generations if made.passes]

    @property
    def failed(self) -> int:
        """Samples that failed."""
        return self.failures.total()

    def count_endings(self, samples: Sequence[Sample]) -> None:
        """Counts how the executions of a prompt ended, given their scored samples."""
        executions = last_samples(samples)
        self.executions += len(executions)
        self.lost += sum(not sample.status.is_finished for sample in executions)
        self.retried += sum("retries" in sample.info for sample in executions)
        self.failures += failure_counts(samples)

    def count_lost(self, executions: int, error: Exception, failure: Failure) -> None:
        """Counts executions that were lost together, without samples."""
        self.failure = f"{type(error).__name__}: {error}"
        self.executions += executions
        self.lost += executions
        if failure is not Failure.LATE:  # counted in dropped_samples/generation/timeout
            self.failures[failure] += executions

    def record_failures(self, samples: Sequence[Sample]) -> None:
        """Remembers the reason of the last failed sample."""
        self.failure = next((sample.failure for sample in reversed(samples) if sample.failure), self.failure)

    def split(self, waiting: Collection[int]) -> "Tally":
        """Returns a new tally with the groups of these prompts, which wait for a later batch."""
        later = Tally(scored=[group for group in self.scored if prompt_index(group) in waiting])
        self.scored = [group for group in self.scored if prompt_index(group) not in waiting]
        return later

    def drop_waiting(self, indices: Collection[int], dropper: str, why: str) -> None:
        """Counts groups that waited for a batch as dropped, and leaves them out of all other metrics."""
        if indices:
            self.dropped[dropper, why] += len(indices)
        self.scored = [group for group in self.scored if prompt_index(group) not in indices]

    def count_filtered(self, result: FilterResult) -> None:
        """Counts the drops and masks that filters decided for a group."""
        self.dropped_samples += result.dropped_samples
        self.masked_samples += result.masked_samples
        if result.dropped is not None:
            self.dropped[result.dropped] += 1
            if result.is_spare:
                self.spare.append(result.group)

    def accept_partial_batch(self, kept: Sequence[Group], batch_size: int) -> list[Group]:
        """Fills up a batch with spare groups once all attempts are used.

        Raises JobError if they are too few.
        """
        spare = sorted(self.spare, key=prompt_index)[: batch_size - len(kept)]
        groups = [*kept, *spare]
        used = {prompt_index(group) for group in spare}
        self.removed = [group for group in self.removed if prompt_index(group) not in used]
        if len(groups) < batch_size:
            raise self._starved(len(kept), batch_size)
        return sorted(groups, key=prompt_index)

    def _starved(self, kept: int, batch_size: int) -> JobError:
        """Returns the error that says how many groups were tried, why they were dropped, and what to do."""
        reasons = ", ".join(f"{n} by {name} ({reason})" for (name, reason), n in self.dropped.most_common())
        last = f" The last failure: {self.failure}." if self.failure else ""
        cure = (
            'Choose prompts the policy sometimes solves (data.type = "curriculum" does), loosen the filters '
            "(nonzero_std has keep_when_short), or raise rollout.max_attempts"
        )
        if self.dropped and all(name == "generation" for name, _ in self.dropped):
            cure = "No filter dropped any of them: find out why the engines or the rollout failed"
        return JobError(
            f"the rollout starved: of {self.submitted} groups tried {kept} were kept, {batch_size} are "
            f"needed. Dropped: {reasons}.{last} {cure}",
            code=Code.STARVED,
        )

    def metrics(self, version: int) -> dict[str, float]:
        """Returns `rollout/…` over every scored group; `version` is that of the trainer's weights."""
        metrics: dict[str, float] = {"failed": self.failed, **failure_metrics(self.failures)}
        metrics |= self.steering
        metrics |= self.execution_limit
        if self.executions:
            metrics["lost_frac"] = self.lost / self.executions
        if self.retried:
            metrics["retried"] = self.retried
        for kind in ("dropped", "dropped_samples", "masked_samples"):
            counts: Counter[Reason] = getattr(self, kind)
            metrics |= {f"{kind}/{name}/{reason}": n for (name, reason), n in sorted(counts.items())}
        if self.prompt_tokens:
            metrics["prefix_cache_hit_rate"] = self.cached_tokens / self.prompt_tokens
        if self.drafted:
            metrics["spec_accept_rate"] = self.accepted / self.drafted
            metrics["spec_accept_length"] = fmean(self.accept_lengths) if self.accept_lengths else 1.0
        if self.retractions:
            metrics["retractions"] = self.retractions / self.generations
        return rollout_metrics(sorted(self.scored, key=prompt_index), version) | add_prefix(
            "rollout", metrics
        )
