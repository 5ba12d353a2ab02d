"""How long a step takes and what a job costs, by roofline: the work over what devices reach in practice.

Good to a factor of two, and good for comparing layouts. `rlrun plan` states the efficiencies and lengths that
it assumes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.models.architecture import Architecture
from rlrun.plugins.types import Needs
from rlrun.runner.planning.activations import ITEM
from rlrun.runner.planning.hardware import Device
from rlrun.runner.planning.memory import cache_token_bytes
from rlrun.runner.planning.model_size import active_parameters, parameter_count
from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan
from rlrun.specs.derived.old_policy import old_log_probs_of
from rlrun.specs.derived.server_size import gpus_of
from rlrun.specs.derived.weight_sync import buckets_on_gpus
from rlrun.specs.sections.job import Spec

TRAIN_EFFICIENCY = 0.35
"""Of the peak of matrix products, in forward and backward passes over packed sequences."""
PREFILL_EFFICIENCY = 0.5
DECODE_EFFICIENCY = 0.5
"""Of the memory's bandwidth, or of the peak of products, in decoding."""
LINK_EFFICIENCY = 0.7
NETWORK = 5e10
"""Bytes a second between nodes, for each GPU: 400 Gbit/s."""
HOST_LINK = 2e10
"""Bytes a second between a GPU and its host."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Mean lengths, tokens."""

    prompt: float
    response: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step and the whole job."""

    parts: Mapping[str, float]
    """Seconds of a step by what they are spent on."""
    devices: int
    """GPUs, or one CPU."""
    steps: int | None

    @property
    def step_seconds(self) -> float:
        """One step; its parts follow each other."""
        return sum(self.parts.values())

    @property
    def device_hours(self) -> float | None:
        """Of the whole job; None where the number of steps is not known."""
        return None if self.steps is None else self.step_seconds * self.steps * self.devices / 3600


def usual_workload(spec: Spec) -> Workload:
    """Half of the longest response and a quarter of the longest prompt."""
    return Workload(spec.rollout.prompt_limit / 4, spec.rollout.max_response_tokens / 2)


@dataclass(frozen=True, slots=True)
class Case:
    """What an estimate looks at."""

    spec: Spec
    plan: Plan
    needs: Needs
    model: Architecture
    device: Device
    load: Workload
    teacher: Architecture | None = None
    others: Mapping[str, Architecture] = field(default_factory=dict)
    """By name of `[[engines]]`."""

    @property
    def on_gpu(self) -> bool:
        """Whether a device is a GPU; it is a whole host otherwise."""
        return self.spec.cluster.gpus_per_node > 0

    def most_on_a_node(self, processes: Sequence[RankPlan | EnginePlan]) -> int:
        """Processes on the node that has most of them."""
        nodes = range(self.spec.cluster.nodes)
        return max(sum(each.place.node == node for each in processes) for node in nodes)


def estimate(case: Case, concurrent: int) -> Estimate:
    """The estimate of a job; `concurrent`: samples an engine decodes at a time."""
    spec, plan = case.spec, case.plan
    parts: dict[str, float] = {}
    if plan.engines:
        parts["generation"] = generation_seconds(case, plan.batch.samples / len(plan.engines), concurrent)
    parts["training"] = step_training_seconds(case)
    if plan.engines:
        parts["weight sync"] = sync_seconds(case)
    devices = spec.cluster.nodes * max(spec.cluster.gpus_per_node, 1)
    return Estimate(parts, devices, plan.steps)


def generation_seconds(case: Case, samples: float, concurrent: int) -> float:
    """One engine's part of a step: prompts in one go, then waves of `concurrent` samples token by token."""
    running = max(1.0, min(samples, concurrent))
    prefill = prompt_seconds(case) * samples / case.plan.batch.samples_per_prompt
    return prefill + samples * case.load.response / running * decode_seconds(case, running)


def prompt_seconds(case: Case) -> float:
    """One prompt through an engine; its samples share it."""
    flops = case.device.flops * _devices(case)
    return 2 * active_parameters(case.model) * case.load.prompt / (flops * PREFILL_EFFICIENCY)


def decode_seconds(case: Case, running: float) -> float:
    """One token for each of `running` samples: weights and caches are read once, each token is multiplied."""
    model, dtype = case.model, case.spec.engine.dtype
    cache = running * (case.load.prompt + case.load.response / 2) * cache_token_bytes(model, dtype)
    reads = (parameter_count(model) * ITEM[dtype] + cache) / case.device.bandwidth
    products = 2 * active_parameters(model) * running / case.device.flops
    return max(reads, products) / (_devices(case) * DECODE_EFFICIENCY)


def _devices(case: Case) -> int:
    """Of one engine, which share its work; what they tell each other meanwhile is not counted."""
    return gpus_of(case.spec.engine) if case.spec.cluster.gpus_per_node else 1


def step_training_seconds(case: Case) -> float:
    """All passes of a step over all its samples."""
    tokens = case.plan.batch.samples * (case.load.prompt + case.load.response)
    return _passes(case) / 3 * training_seconds(case, tokens)


def training_seconds(case: Case, tokens: float) -> float:
    """Forward and backward over a step's tokens: products, or what FSDP gathers meanwhile; then the traffic
    that waits for products (tensor parallelism), and the pipeline's idle ends.
    """
    spec, model, parallel = case.spec, case.model, case.spec.trainer.parallel
    mine = tokens / parallel.data_degree
    lengths = case.load.prompt + case.load.response
    products = 6 * active_parameters(model) + 6 * model.layers * model.heads * model.head_dim * lengths
    group = parallel.tensor * parallel.context * parallel.pipeline
    compute = mine * products / group / (case.device.flops * TRAIN_EFFICIENCY)
    budget: float = spec.trainer.max_tokens_per_rank * parallel.context
    if spec.trainer.micro_batch_size is not None:
        budget = spec.trainer.micro_batch_size * lengths
    micro_batches = max(1, math.ceil(mine / budget))
    weights = parameter_count(model) * ITEM[spec.trainer.dtype] / (parallel.tensor * parallel.pipeline)
    sharded = parallel.fsdp * parallel.context
    gathered = 3 * micro_batches * weights * (sharded - 1) / sharded / _link(case, sharded * parallel.tensor)
    exchanged = 8 * model.layers / parallel.pipeline * mine / parallel.context * model.hidden
    exchanged *= ITEM[spec.trainer.dtype] * (parallel.tensor - 1) / parallel.tensor
    bubble = 1 + (parallel.pipeline - 1) / micro_batches
    return (max(compute, gathered) + exchanged / _link(case, parallel.tensor)) * bubble


def sync_seconds(case: Case) -> float:
    """Weights by way of host memory, or gathered on each GPU and copied there."""
    rate = _link(case, len(case.plan.ranks)) if buckets_on_gpus(case.spec) else HOST_LINK
    return parameter_count(case.model) * ITEM[case.spec.engine.dtype] / rate


def _passes(case: Case) -> float:
    """Forward passes of a step, a backward pass counted as two."""
    several = case.plan.batch.optimizer_steps > 1
    denominator = old_log_probs_of(case.spec, corrected=case.needs.trainer_log_probs)
    old = case.needs.old_log_probs and denominator == "trainer" and several
    critic = 4.0 if case.needs.critic else 0.0  # values, and an update of its own
    larger = active_parameters(case.teacher) / active_parameters(case.model) if case.teacher else 0.0
    return 3.0 + old + case.needs.reference + critic + larger


def _link(case: Case, ranks: int) -> float:
    """Bytes a second between neighbours in a group of ranks."""
    inside = ranks <= max(case.spec.cluster.gpus_per_node, 1)
    return (case.device.link if inside else min(case.device.link, NETWORK)) * LINK_EFFICIENCY
