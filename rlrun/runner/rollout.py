"""Steps 1 to 4 of the loop: prompts to groups worth training on.

    prompts ──▶ engines ──▶ decode ──▶ rewards ──▶ filters ──▶ kept, ordered by prompt index
       ▲                                              │
       └──── more, while in flight + kept < P ◀───────┴──▶ dropped, counted by filter and reason

Each group runs on its own as the engines finish it. In deterministic mode groups go in whole waves, and
nothing depends on which is first.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlrun.plugins.types import Group, Prompt, Status
from rlrun.runner.ahead import ReadAhead
from rlrun.runner.background import cancel_all
from rlrun.runner.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.errors import EngineError, JobError
from rlrun.runner.grouping import groups_of, mask_truncated, prompt_index, request_for, without
from rlrun.runner.interfaces import GroupFilter, Policy
from rlrun.runner.metrics import prefixed, rollout_metrics
from rlrun.specs.rollout import RolloutSpec

_ABORT_SECONDS = 5.0
"""How long aborted requests may take to answer before their tasks are given up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    groups: list[Group]
    """Ordered by prompt index."""
    generated_tokens: int = 0
    """Response tokens that engines made, those of dropped groups included."""
    measure: Callable[[], dict[str, float]] = dict
    """Computes `rollout/…` over every group that was scored, kept or not; called while the trainer works."""


@dataclass(slots=True)
class _Tally:
    """What happened in one step so far."""

    submitted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    scored: list[Group] = field(default_factory=list)
    spare: list[Group] = field(default_factory=list)
    """Dropped by a filter that would rather keep them than let the step starve."""

    def count(self, prompt: Prompt, generations: Sequence[Generation]) -> None:
        self.prompt_tokens += len(prompt.tokens) * len(generations)
        self.cached_tokens += sum(made.cached_tokens for made in generations)
        self.generated_tokens += sum(len(made.tokens) for made in generations)

    def metrics(self, version: int) -> dict[str, float]:
        metrics: dict[str, float] = {"failed": self.failed}
        metrics |= {f"dropped/{name}/{reason}": n for (name, reason), n in sorted(self.dropped.items())}
        if self.prompt_tokens:
            metrics["prefix_cache_hit_rate"] = self.cached_tokens / self.prompt_tokens
        return rollout_metrics(sorted(self.scored, key=prompt_index), version) | prefixed("rollout", metrics)


class RolloutSource:
    """Batches of groups that the policy answered."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: Policy,
        prompts: ReadAhead[Prompt],
        filters: Sequence[tuple[str, GroupFilter]],
    ) -> None:
        """`prompts` come in batches of `oversample`; `filters` by the names their drops are counted under."""
        self._spec = spec
        self._policy = policy
        self._prompts = prompts
        self._filters = filters
        self._collect = self._waves if policy.deterministic else self._stream
        self._sampling = sampling_of(spec)

    async def next(self, version: int) -> Batch:
        """The next P kept groups, from engines that serve `version`. JobError when filters leave too few."""
        tally = _Tally()
        kept = await self._collect(tally)
        return Batch(kept, tally.generated_tokens, partial(tally.metrics, version))

    def state(self) -> dict[str, Any]:
        """The place in the data."""
        return self._prompts.state()

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        await self._prompts.restore(state)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._prompts.close()

    async def _stream(self, tally: _Tally) -> list[Group]:
        """P groups, first finished first kept."""
        kept: list[Group] = []
        running: set[asyncio.Task[Group | None]] = set()
        enough = asyncio.Event()
        try:
            while len(kept) < self._spec.batch_size:
                if len(running) + len(kept) < self._spec.batch_size and not self._exhausted(tally):
                    prompts = await self._more(tally)
                    running |= {asyncio.create_task(self._run(prompt, tally, enough)) for prompt in prompts}
                if not running:
                    return self._make_do(kept, tally)
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                kept += [group for task in done if (group := task.result())]
        finally:
            enough.set()
            await self._abort(running)
        return sorted(kept, key=prompt_index)[: self._spec.batch_size]

    async def _waves(self, tally: _Tally) -> list[Group]:
        """The first P groups kept in the order of prompts, generated and scored a whole wave at a time."""
        kept: list[Group] = []
        while len(kept) < self._spec.batch_size:
            if self._exhausted(tally):
                return self._make_do(kept, tally)
            prompts = await self._more(tally)
            requests = [self._request(prompt) for prompt in prompts]
            seconds = self._spec.request_timeout
            try:
                async with asyncio.timeout(seconds):
                    answers = await self._policy.engines.generate_batch(requests)
            except TimeoutError:
                raise JobError(
                    f"{len(requests)} prompts were not answered within {seconds:g} s, and in deterministic "
                    "mode none can be replaced; raise rollout.request_timeout or lower max_response_tokens"
                ) from None
            groups = await self._grade(prompts, answers, tally)
            kept += [group for scored in groups if (group := self._settle(scored, tally))]
        return kept[: self._spec.batch_size]

    async def _more(self, tally: _Tally) -> list[Prompt]:
        prompts = await self._prompts.next()
        tally.submitted += len(prompts)
        return prompts

    async def _run(self, prompt: Prompt, tally: _Tally, enough: asyncio.Event) -> Group | None:
        """One group from prompt to verdict; None when it is dropped."""
        try:
            async with asyncio.timeout(self._spec.request_timeout):
                generations = await self._policy.engines.generate(self._request(prompt))
        except TimeoutError:
            tally.dropped["generation", "timeout"] += 1
            return None
        except EngineError:
            tally.failed += self._spec.samples_per_prompt
            tally.dropped["generation", "failed"] += 1
            return None
        if enough.is_set():
            return None
        [group] = await self._grade([prompt], [generations], tally)
        return self._settle(group, tally)

    async def _grade(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Generation]], tally: _Tally
    ) -> list[Group]:
        for prompt, generations in zip(prompts, answers, strict=True):
            tally.count(prompt, generations)
        groups = groups_of(prompts, answers, self._policy.decoder)
        await self._policy.grader.score([sample for group in groups for sample in group.samples])
        return groups

    def _settle(self, group: Group, tally: _Tally) -> Group | None:
        """The group as it is trained on, or None, counted."""
        tally.scored.append(group)
        tally.failed += sum(sample.status is Status.FAILED for sample in group.samples)
        group = without(without(group, Status.FAILED), Status.ABORTED)
        if verdict := self._verdict(group, tally):
            tally.dropped[verdict] += 1
            return None
        if self._spec.truncated == "drop":
            return without(group, Status.TRUNCATED)
        return mask_truncated(group) if self._spec.truncated == "mask" else group

    def _verdict(self, group: Group, tally: _Tally) -> tuple[str, str] | None:
        """Who drops the group and why; None keeps it."""
        if not group.samples:
            return "generation", "failed"
        if self._spec.truncated == "drop":
            group = without(group, Status.TRUNCATED)
            if not group.samples:
                return "truncated", "all"
        for name, judge in self._filters:
            if verdict := judge(group):
                if getattr(judge, "keep_when_short", False):
                    tally.spare.append(group)
                return name, verdict.reason
        return None

    def _exhausted(self, tally: _Tally) -> bool:
        return tally.submitted >= self._spec.max_attempts * self._spec.batch_size

    def _make_do(self, kept: list[Group], tally: _Tally) -> list[Group]:
        """Fill up with spare groups once nothing more may be tried. JobError when they do not suffice."""
        wanted = self._spec.batch_size
        spare = sorted(tally.spare, key=prompt_index)[: wanted - len(kept)]
        if len(kept) + len(spare) == wanted:
            return sorted(kept + spare, key=prompt_index)
        why = ", ".join(f"{n} by {name} ({reason})" for (name, reason), n in tally.dropped.most_common())
        raise JobError(
            f"the rollout starved: of {tally.submitted} groups tried {len(kept)} were kept, {wanted} are "
            f"needed. Dropped: {why}. Choose prompts the policy sometimes solves, loosen the filters "
            "(nonzero_std has keep_when_short), or raise rollout.max_attempts"
        )

    async def _abort(self, running: set[asyncio.Task[Group | None]]) -> None:
        """End what is still being generated; nothing of this step runs on when the weights change."""
        if not running:
            return
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._policy.engines.abort_all()
            await asyncio.wait(running, timeout=_ABORT_SECONDS)
        finally:
            await cancel_all(running)

    def _request(self, prompt: Prompt) -> GenerateRequest:
        return request_for(
            prompt, self._sampling, self._spec.samples_per_prompt, self._policy.seed, "rollout"
        )


def sampling_of(spec: RolloutSpec) -> Sampling:
    """The spec's settings in the words of the engines."""
    return Sampling(
        max_new_tokens=spec.max_response_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        min_new_tokens=spec.min_response_tokens,
        stop=spec.stop,
        stop_token_ids=spec.stop_token_ids,
    )
