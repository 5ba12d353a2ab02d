"""Derives what a job will do, and on which devices, from its spec.

    spec, number of rows, cores of a node -> Plan: batch equation, steps, ranks and engines on nodes and GPUs

The plan is pure data: `rlrun plan` shows it, and `runner/cluster` starts the processes that it lists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.device_map import (
    DeviceLocation,
    DeviceLocations,
    available_cores,
    place_engines,
    place_named_engines,
    place_ranks,
    share_threads,
)
from rlrun.runner.planning.rank_layout import Coordinates, coordinates, data_rank, full_micro_batch
from rlrun.specs.derived.batch_equation import BatchNumbers, batch_numbers
from rlrun.specs.derived.engine_layout import Layout, layout_of, starts_with_job
from rlrun.specs.derived.lengths import resolved_sample
from rlrun.specs.derived.served_adapters import teacher_in_policy_layout
from rlrun.specs.sections.auxiliary_models import auxiliary_layout
from rlrun.specs.sections.debug import DebugMode
from rlrun.specs.sections.engine import EngineRole, EngineSpec
from rlrun.specs.sections.job import Spec

POLICY_NAME = "engine"
"""The name of the policy's engines, which none of `[[engines]]` may have."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One trainer rank.

    Example: `RankPlan(3, 1, 3, 3, Coordinates(0, 0, 1, 0, 1), DeviceLocation(0, 3), 4)` is the last rank
    of fsdp 2 × tensor 2.
    """

    rank: int
    data_rank: int
    """The part of the samples that it sees; ranks that differ only in pipeline, context or tensor see the
    same.
    """
    teacher_data_rank: int
    """Its data rank in the layout of the teacher, if the job has one."""
    critic_data_rank: int
    """Its data rank in the layout of the critic, if the job has one."""
    coordinates: Coordinates
    location: DeviceLocation
    threads: int
    """CPU threads."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine that the job starts."""

    name: str
    """`engine` for the policy's engines, else the name in `[[engines]]`."""
    index: int
    """Its number among the engines of its name."""
    locations: DeviceLocations
    """Its GPUs, ordered by node; a single location on CPU."""
    threads: int
    """CPU threads of each of its processes."""
    port: int | None
    """The port that it listens on; None lets the system choose a free one."""
    group: int = 0
    """The number of its group among those of the policy's engines."""
    role: EngineRole = "regular"
    """What it does for a sample."""

    @property
    def is_named(self) -> bool:
        """Whether it is one of `[[engines]]`."""
        return self.name != POLICY_NAME

    @property
    def location(self) -> DeviceLocation:
        """Its first device, on the node that answers requests."""
        return self.locations[0]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that it uses, starting with the one that answers requests."""
        return tuple(dict.fromkeys(location.node for location in self.locations))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything derived from a spec."""

    batch: BatchNumbers
    """P, n, G and S of a step."""
    responses_per_prompt: int
    """Number of responses that are generated to a prompt: n, and a greedy one if the algorithm needs it."""
    steps: int | None
    """Number of steps (SFT: optimizer steps), 0 for an evaluation alone; None if the spec counts epochs and
    the number of rows is unknown.
    """
    ranks: tuple[RankPlan, ...]
    engines: tuple[EnginePlan, ...]
    """The policy's engines; empty for an algorithm without rollouts."""
    named_engines: tuple[EnginePlan, ...]
    """The engines of `[[engines]]`, which have their own devices."""
    colocated: bool
    """Whether ranks and engines share the same devices."""
    rollout: bool
    """Whether engines generate: the job's own, or external ones."""
    max_sample_tokens: int
    """Length of the longest prompt with the longest response, in training or evaluation."""
    micro_batch_tokens: int
    """Token budget of one packed micro-batch (a longer sample has a micro-batch to itself), or the tokens of
    `trainer.micro_batch_size` samples of the greatest length.
    """
    cache_tokens: int
    """Tokens in the KV cache of each engine; 0 without engines."""
    min_engines: int | None = None
    """How many of the policy's engines the job needs, where they are elastic; None if it needs all."""

    @property
    def optimizer_steps(self) -> int | None:
        """Number of optimizer steps of the whole job; None if `steps` is."""
        return None if self.steps is None else self.steps * self.batch.optimizer_steps

    @property
    def generating_engines(self) -> tuple[EnginePlan, ...]:
        """The policy's engines without those that only compute prompts."""
        return tuple(engine for engine in self.engines if engine.role != "prefill")

    def engine_process_on(self, location: DeviceLocation) -> int | None:
        """Returns the number of the process of the policy's engines on a GPU, counted over all engines.

        None if no engine uses the device, and on CPUs, where memory is the host's.
        """
        processes = [device for engine in self.engines for device in engine.locations]
        return processes.index(location) if location.gpu is not None and location in processes else None


def make_plan(spec: Spec, rows: int | None = None, cores: int | None = None) -> Plan:
    """Returns the plan of a valid spec.

    `rows` is the number of usable rows of the dataset, if known. `cores` is the number of cores of each node;
    None takes the cores that this process may use. Raises ValueError, with the numbers, if the spec asks for
    more than exists.
    """
    needs = needs_of(spec)
    rollout = needs.rollout
    batch = batch_numbers(spec, rollout)
    layout = layout_of(spec, rollout)
    locations = place_ranks(spec, layout), place_engines(spec, layout), place_named_engines(spec, layout)
    threads = share_threads(spec, layout, locations, cores or available_cores())
    longest = resolved_sample(spec)
    engines = tuple(
        replace(engine, group=group.number, role=group.role)
        for engine, group in zip(
            _engines(POLICY_NAME, spec.engine, locations[1], threads[1]), layout.engine_groups, strict=True
        )
    )
    return Plan(
        batch=batch,
        responses_per_prompt=needs.responses(batch.samples_per_prompt),
        steps=_steps(spec, batch, rows),
        ranks=tuple(_ranks(spec, layout, locations[0], threads[0])),
        engines=engines,
        named_engines=tuple(_named_engines(spec, locations[2], threads[2])),
        colocated=layout.colocated,
        rollout=rollout,
        max_sample_tokens=longest,
        micro_batch_tokens=full_micro_batch(spec.trainer, longest),
        cache_tokens=(spec.engine.max_cache_tokens or spec.engine.max_running * longest) if engines else 0,
        min_engines=spec.engine.min_count if engines else None,
    )


def plan_for_mode(plan: Plan, mode: DebugMode | None) -> Plan:
    """Returns the part of the plan that a debug mode starts, with the placement of the whole job."""
    if mode is None:
        return plan
    if mode == "train":
        return replace(plan, engines=(), min_engines=None, rollout=False)
    return replace(plan, ranks=())


def _ranks(
    spec: Spec, layout: Layout, locations: Sequence[DeviceLocation], threads: Sequence[int]
) -> Iterator[RankPlan]:
    parallel = spec.trainer.parallel
    teacher = auxiliary_layout(None if spec.teacher is None else spec.teacher.parallel, layout.ranks)
    teacher = parallel if teacher_in_policy_layout(spec) else teacher
    critic = auxiliary_layout(spec.critic.parallel, layout.ranks)
    for rank, (location, thread_count) in enumerate(zip(locations, threads, strict=True)):
        yield RankPlan(
            rank=rank,
            data_rank=data_rank(rank, parallel),
            teacher_data_rank=data_rank(rank, teacher),
            critic_data_rank=data_rank(rank, critic),
            coordinates=coordinates(rank, parallel),
            location=location,
            threads=thread_count,
        )


def _engines(
    name: str, section: EngineSpec, locations: Sequence[DeviceLocations], threads: Sequence[int]
) -> Iterator[EnginePlan]:
    """Yields the engines of one section; their ports count up from the section's."""
    for index, (devices, thread_count) in enumerate(zip(locations, threads, strict=True)):
        yield EnginePlan(name, index, devices, thread_count, section.port and section.port + index)


def _named_engines(
    spec: Spec, locations: Sequence[DeviceLocations], threads: Sequence[int]
) -> Iterator[EnginePlan]:
    """Yields the engines of every section of `[[engines]]` that the job starts."""
    first = 0
    for section in filter(starts_with_job, spec.engines):
        section_slice = slice(first, first := first + (section.count or 1))
        yield from _engines(section.name, section, locations[section_slice], threads[section_slice])


def _steps(spec: Spec, batch: BatchNumbers, rows: int | None) -> int | None:
    if spec.debug.mode == "eval":
        return 0
    if spec.trainer.epochs is None:
        return spec.trainer.steps
    if rows is None:
        return None
    if rows < batch.prompts:
        raise ValueError(
            f"the dataset has {rows} usable rows and a step needs {batch.prompts}, so an epoch would have no "
            "step: lower the batch size or add data"
        )
    return spec.trainer.epochs * (rows // batch.prompts)
