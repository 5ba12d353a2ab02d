"""What happened to prompts between one batch and the next: counted, told of as metrics, or why it starved."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rlrun.plugins.generation import Generation
from rlrun.plugins.types import Group, Sample
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.records.metrics import prefixed, rollout_metrics
from rlrun.runner.rollouts.filtering import Judged, Verdict
from rlrun.runner.rollouts.grouping import prompt_index


@dataclass(slots=True)
class Tally:
    """What happened to prompts since the last batch."""

    submitted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    dropped: Counter[Verdict] = field(default_factory=Counter)
    dropped_samples: Counter[Verdict] = field(default_factory=Counter)
    masked_samples: Counter[Verdict] = field(default_factory=Counter)
    failure: str = ""
    """Why the last execution or request that failed did so."""
    scored: list[Group] = field(default_factory=list)
    spare: list[Group] = field(default_factory=list)
    """Dropped by a filter that would rather keep them than let the step starve."""

    def count(self, request: GenerateRequest, generations: Sequence[Generation]) -> None:
        """Note what an engine was asked, and what it answered."""
        self.prompt_tokens += len(request.tokens) * len(generations)
        self.cached_tokens += sum(made.cached_tokens for made in generations)
        self.generated_tokens += sum(len(made.tokens) for made in generations)

    def note_failures(self, samples: Sequence[Sample]) -> None:
        """Remember why the last execution failed that did."""
        self.failure = next((one.failure for one in reversed(samples) if one.failure), self.failure)

    def split(self, waiting: Collection[int]) -> "Tally":
        """A new tally with the groups of these prompts, which are told of when they are trained on."""
        later = Tally(scored=[group for group in self.scored if prompt_index(group) in waiting])
        self.scored = [group for group in self.scored if prompt_index(group) not in waiting]
        return later

    def drop_waiting(self, indices: Collection[int], who: str, why: str) -> None:
        """Count the groups of these prompts as dropped, and nothing else of them."""
        if indices:
            self.dropped[who, why] += len(indices)
        self.scored = [group for group in self.scored if prompt_index(group) not in indices]

    def note_verdicts(self, judged: Judged) -> None:
        """Count what filters said of a group."""
        self.dropped_samples += judged.dropped_samples
        self.masked_samples += judged.masked_samples
        if judged.dropped is not None:
            self.dropped[judged.dropped] += 1
            if judged.spare:
                self.spare.append(judged.group)

    def make_do(self, kept: Sequence[Group], wanted: int) -> list[Group]:
        """Fill up with spare groups once nothing more may be tried. JobError when they do not suffice."""
        groups = [*kept, *sorted(self.spare, key=prompt_index)[: wanted - len(kept)]]
        if len(groups) < wanted:
            raise self._starved(len(kept), wanted)
        return sorted(groups, key=prompt_index)

    def _starved(self, kept: int, wanted: int) -> JobError:
        """What was tried, and why so little was kept."""
        why = ", ".join(f"{n} by {name} ({reason})" for (name, reason), n in self.dropped.most_common())
        last = f" The last failure: {self.failure}." if self.failure else ""
        cure = (
            "Choose prompts the policy sometimes solves, loosen the filters (nonzero_std has "
            "keep_when_short), or raise rollout.max_attempts"
        )
        if self.dropped and all(name == "generation" for name, _ in self.dropped):
            cure = "No filter dropped any of them: find out why the engines or the rollout failed"
        return JobError(
            f"the rollout starved: of {self.submitted} groups tried {kept} were kept, {wanted} are "
            f"needed. Dropped: {why}.{last} {cure}"
        )

    def metrics(self, version: int) -> dict[str, float]:
        """`rollout/…` over every group that was scored; `version` is what the trainer holds."""
        metrics: dict[str, float] = {"failed": self.failed}
        for kind in ("dropped", "dropped_samples", "masked_samples"):
            counts: Counter[Verdict] = getattr(self, kind)
            metrics |= {f"{kind}/{name}/{reason}": n for (name, reason), n in sorted(counts.items())}
        if self.prompt_tokens:
            metrics["prefix_cache_hit_rate"] = self.cached_tokens / self.prompt_tokens
        return rollout_metrics(sorted(self.scored, key=prompt_index), version) | prefixed("rollout", metrics)
