"""What a job will do and where, worked out from its spec before anything is started.

    spec, number of rows, cores of a node -> Plan: batch equation, steps, ranks and engines on nodes and GPUs

Pure: `rlrun plan` shows it, the cluster carries it out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.device_map import (
    DeviceLocation,
    Places,
    available_cores,
    local_ranks,
    place_engines,
    place_others,
    place_ranks,
    share_threads,
)
from rlrun.runner.planning.rank_layout import Coordinates, coordinates, data_rank
from rlrun.specs.derived.batch_equation import BatchNumbers, batch_numbers
from rlrun.specs.derived.engine_layout import Layout, layout_of, starts_with_job
from rlrun.specs.derived.lengths import longest_sample
from rlrun.specs.sections.companions import companion_layout
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One trainer rank.

    Example: `RankPlan(3, 1, 3, 3, Coordinates(0, 0, 1, 0, 1), Place(0, 3), 3, 4)` of fsdp 2 × tensor 2.
    """

    rank: int
    data_rank: int
    """Which part of the samples it sees: ranks apart in pipeline, context or tensor alone see the same."""
    teacher_data_rank: int
    """The same in the teacher's layout, should there be one."""
    critic_data_rank: int
    coordinates: Coordinates
    place: DeviceLocation
    local_rank: int
    """Number among the trainer ranks of its node."""
    threads: int
    """CPU threads."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine that the job starts."""

    name: str
    """`engine` for those that generate, else the name in `[[engines]]`."""
    index: int
    """Among those of its name."""
    places: tuple[DeviceLocation, ...]
    """Its GPUs, by node; one place on CPU."""
    threads: int
    """CPU threads of each of its processes there."""
    port: int | None
    """Where it listens; None: a free port."""

    @property
    def place(self) -> DeviceLocation:
        """The first of its devices, on the node that answers."""
        return self.places[0]

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes that it lies on, the one that answers first."""
        return tuple(dict.fromkeys(place.node for place in self.places))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything derived from a spec."""

    batch: BatchNumbers
    """P, n, G, S of a rollout step."""
    steps: int | None
    """Rollout steps (SFT: optimizer steps); None while the spec counts epochs of unknown length."""
    ranks: tuple[RankPlan, ...]
    engines: tuple[EnginePlan, ...]
    """Empty for an algorithm without rollouts."""
    others: tuple[EnginePlan, ...]
    """Of `[[engines]]`; on devices of their own."""
    colocated: bool
    """Ranks and engines take turns on the same devices."""
    rollout: bool
    """Engines generate: the job's own, or external ones."""
    max_sample_tokens: int
    """Prompt and response at their longest, in training or evaluation."""
    micro_batch_tokens: int
    """Token budget of one packed micro-batch (a longer sample is alone in its own), or so many samples at
    their longest.
    """
    cache_tokens: int
    """KV cache of each engine; 0 without engines."""

    @property
    def optimizer_steps(self) -> int | None:
        """Of the whole job."""
        return None if self.steps is None else self.steps * self.batch.optimizer_steps


def make_plan(spec: Spec, rows: int | None = None, cores: int | None = None) -> Plan:
    """The plan of a valid spec.

    `rows`: usable rows of the dataset, where known. `cores`: of each node; None: as many as this process may
    use. Raises ValueError, with the numbers, where the spec asks for more than there is.
    """
    rollout = needs_of(spec).rollout
    batch = batch_numbers(spec, rollout)
    layout = layout_of(spec, rollout)
    places = place_ranks(spec, layout), place_engines(spec, layout), place_others(spec, layout)
    threads = share_threads(spec, layout, places, cores or available_cores())
    longest = longest_sample(spec)
    engines = tuple(_engines("engine", spec.engine, places[1], threads[1]))
    return Plan(
        batch=batch,
        steps=_steps(spec, batch, rows),
        ranks=tuple(_ranks(spec, layout, places[0], threads[0])),
        engines=engines,
        others=tuple(_others(spec, places[2], threads[2])),
        colocated=layout.colocated,
        rollout=rollout,
        max_sample_tokens=longest,
        micro_batch_tokens=_micro_batch_tokens(spec, longest),
        cache_tokens=(spec.engine.max_cache_tokens or spec.engine.max_running * longest) if engines else 0,
    )


def _ranks(
    spec: Spec, layout: Layout, places: Sequence[DeviceLocation], threads: Sequence[int]
) -> Iterator[RankPlan]:
    parallel = spec.trainer.parallel
    teacher = companion_layout(None if spec.teacher is None else spec.teacher.parallel, layout.ranks)
    critic = companion_layout(spec.critic.parallel, layout.ranks)
    for rank, (place, local, own) in enumerate(zip(places, local_ranks(places), threads, strict=True)):
        yield RankPlan(
            rank=rank,
            data_rank=data_rank(rank, parallel),
            teacher_data_rank=data_rank(rank, teacher),
            critic_data_rank=data_rank(rank, critic),
            coordinates=coordinates(rank, parallel),
            place=place,
            local_rank=local,
            threads=own,
        )


def _engines(
    name: str, section: EngineSpec, places: Sequence[Places], threads: Sequence[int]
) -> Iterator[EnginePlan]:
    """Of one section."""
    for index, (own, count) in enumerate(zip(places, threads, strict=True)):
        yield EnginePlan(name, index, own, count, section.port and section.port + index)


def _others(spec: Spec, places: Sequence[Places], threads: Sequence[int]) -> Iterator[EnginePlan]:
    """Of each section of `[[engines]]` that the job starts."""
    first = 0
    for section in filter(starts_with_job, spec.engines):
        part = slice(first, first := first + (section.count or 1))
        yield from _engines(section.name, section, places[part], threads[part])


def _micro_batch_tokens(spec: Spec, longest: int) -> int:
    if spec.trainer.micro_batch_size is not None:
        return spec.trainer.micro_batch_size * longest
    return spec.trainer.max_tokens_per_rank * spec.trainer.parallel.context


def _steps(spec: Spec, batch: BatchNumbers, rows: int | None) -> int | None:
    if spec.trainer.epochs is None:
        return spec.trainer.steps
    if rows is None:
        return None
    if rows < batch.prompts:
        raise ValueError(
            f"the dataset has {rows} usable rows, fewer than the {batch.prompts} of one step: "
            "an epoch would have no step; lower the batch size or add data"
        )
    return spec.trainer.epochs * (rows // batch.prompts)
