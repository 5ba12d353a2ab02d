"""What a job will do and where, worked out from its spec before anything is started.

    spec, number of rows, cores of a node -> Plan: batch equation, steps, ranks and engines on nodes and GPUs

Pure: `rlrun plan` shows it, the cluster carries it out.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlrun.plugins.validation import needs_of
from rlrun.runner.trainer.layout import Coordinates, coordinates, data_rank
from rlrun.specs.batch import BatchNumbers, batch_numbers
from rlrun.specs.companions import side_layout
from rlrun.specs.engine import NamedEngineSpec
from rlrun.specs.job import Spec
from rlrun.specs.layout import Layout, layout_of, started
from rlrun.specs.lengths import longest_sample


@dataclass(frozen=True, slots=True)
class Place:
    """A device: a GPU of a node, or a share of a node's cores."""

    node: int
    gpu: int | None
    """Number of the GPU on its node; None on CPU."""


Places = tuple[Place, ...]


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
    place: Place
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
    places: tuple[Place, ...]
    """Its GPUs, by node; one place on CPU."""
    threads: int
    """CPU threads of each of its processes there."""
    port: int | None
    """Where it listens; None: a free port."""

    @property
    def place(self) -> Place:
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
    ranks = _place_ranks(spec, layout)
    engines = _place_engines(spec, layout)
    others = _place_others(spec, layout)
    cores = cores or available_cores()
    rank_threads, engine_threads, other_threads = _threads(spec, layout, (ranks, engines, others), cores)
    longest = longest_sample(spec)
    teacher = side_layout(None if spec.teacher is None else spec.teacher.parallel, layout.ranks)
    critic = side_layout(spec.critic.parallel, layout.ranks)
    return Plan(
        batch=batch,
        steps=_steps(spec, batch, rows),
        ranks=tuple(
            RankPlan(
                rank=rank,
                data_rank=data_rank(rank, spec.trainer.parallel),
                teacher_data_rank=data_rank(rank, teacher),
                critic_data_rank=data_rank(rank, critic),
                coordinates=coordinates(rank, spec.trainer.parallel),
                place=place,
                local_rank=local_rank,
                threads=threads,
            )
            for rank, (place, local_rank, threads) in enumerate(
                zip(ranks, _local_ranks(ranks), rank_threads, strict=True)
            )
        ),
        engines=tuple(
            EnginePlan("engine", index, places, threads, spec.engine.port and spec.engine.port + index)
            for index, (places, threads) in enumerate(zip(engines, engine_threads, strict=True))
        ),
        others=tuple(
            EnginePlan(section.name, index, places, threads, section.port and section.port + index)
            for (section, index), places, threads in zip(_others(spec), others, other_threads, strict=True)
        ),
        colocated=layout.colocated,
        rollout=rollout,
        max_sample_tokens=longest,
        micro_batch_tokens=_micro_batch_tokens(spec, longest),
        cache_tokens=(spec.engine.max_cache_tokens or spec.engine.max_running * longest) if engines else 0,
    )


def _micro_batch_tokens(spec: Spec, longest: int) -> int:
    if spec.trainer.micro_batch_size is not None:
        return spec.trainer.micro_batch_size * longest
    return spec.trainer.max_tokens_per_rank * spec.trainer.parallel.context


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def _place_ranks(spec: Spec, layout: Layout) -> list[Place]:
    """GPUs in order, so that neighbouring ranks, which talk most, share a node."""
    if layout.gpus:
        return [_gpu(number, spec) for number in range(layout.ranks)]
    return _spread(layout.ranks, spec.cluster.nodes)


def _local_ranks(ranks: Sequence[Place]) -> list[int]:
    """Each rank's number among those of its node."""
    seen: Counter[int] = Counter()
    numbers = []
    for place in ranks:
        numbers.append(seen[place.node])
        seen[place.node] += 1
    return numbers


def _place_engines(spec: Spec, layout: Layout) -> list[Places]:
    """On the ranks' own GPUs when colocated, else on those after them."""
    if layout.gpus:
        return _in_a_row(layout.first_engine, (layout.engine_gpus,) * layout.engines, spec)
    return [(place,) for place in _spread(layout.engines, spec.cluster.nodes)]


def _others(spec: Spec) -> list[tuple[NamedEngineSpec, int]]:
    """Engines of `[[engines]]` that the job starts, each with its number among those of its name."""
    sections = [section for section in spec.engines if started(section)]
    return [(section, index) for section in sections for index in range(section.count or 1)]


def _place_others(spec: Spec, layout: Layout) -> list[Places]:
    """On the last GPUs, or spread over the nodes."""
    if layout.gpus:
        return _in_a_row(layout.first_other, layout.others, spec)
    return [(place,) for place in _spread(len(layout.others), spec.cluster.nodes)]


def _in_a_row(first: int, sizes: Sequence[int], spec: Spec) -> list[Places]:
    """GPUs of engines of these sizes, one engine after the other."""
    firsts = accumulate(sizes, initial=first)
    return [
        tuple(_gpu(begin + number, spec) for number in range(size))
        for begin, size in zip(firsts, sizes, strict=False)
    ]


def _gpu(number: int, spec: Spec) -> Place:
    return Place(*divmod(number, spec.cluster.gpus_per_node))


def _spread(count: int, nodes: int) -> list[Place]:
    """`count` processes over the nodes, in blocks that differ by one at most."""
    return [Place(number * nodes // count, None) for number in range(count)]


def _threads(
    spec: Spec, layout: Layout, places: tuple[list[Place], list[Places], list[Places]], cores: int
) -> tuple[list[int], list[int], list[int]]:
    """Threads of each rank, each engine, each of the others: those who work at the same time on a node share
    its cores, a server of several GPUs as many times.
    """
    ranks: list[Places] = [(place,) for place in places[0]]
    engines, others = places[1:]

    def shares(owners: Sequence[Places], at_work: Sequence[Places]) -> list[int]:
        sharers = Counter(place.node for places in at_work for place in places)
        return [spec.cluster.threads or max(1, cores // sharers[places[0].node]) for places in owners]

    everyone = [*ranks, *engines, *others]
    if not layout.colocated:
        return shares(ranks, everyone), shares(engines, everyone), shares(others, everyone)
    busier = max(ranks, engines, key=lambda owners: sum(len(places) for places in owners))
    with_ranks, with_engines = [*ranks, *others], [*engines, *others]
    return shares(ranks, with_ranks), shares(engines, with_engines), shares(others, [*busier, *others])
