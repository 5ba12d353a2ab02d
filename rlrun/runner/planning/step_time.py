"""Estimates the time of a step and the cost of a job with a roofline model.

The estimate divides the work by the speed that devices reach in practice. It is right to a factor of two,
which is enough to compare layouts. `rlrun plan` prints the efficiencies and lengths that it assumes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.converters.families.stored_adapter import StoredAdapter
from rlrun.models.architecture import Architecture
from rlrun.plugins.types import Needs
from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.hardware import Device
from rlrun.runner.planning.memory import cache_copies, cache_token_bytes
from rlrun.runner.planning.model_size import (
    active_parameters,
    attention_operations,
    parameter_count,
    token_operations,
)
from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan
from rlrun.runner.planning.rank_layout import full_micro_batch
from rlrun.runner.planning.rank_share import pipeline_imbalance, policy_share
from rlrun.runner.planning.served_weights import DraftModel, served_weight_bytes
from rlrun.runner.planning.storage import checkpoint_bytes, offloaded_bytes
from rlrun.specs.derived.old_policy import may_be_stale
from rlrun.specs.derived.served_adapters import teacher_in_policy_layout
from rlrun.specs.derived.shared_prefixes import is_shared
from rlrun.specs.sections.auxiliary_models import SOLUTION, CriticSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.text_template import template_names

TRAIN_EFFICIENCY = 0.35
"""Share of peak FLOPs that forward and backward passes over packed sequences reach. On an H200 it was 0.33
for Qwen3-0.6B, and 0.36 compiled (docs/gpu.md)."""
LOW_PRECISION_SPEEDUP = 1.2
"""How much faster training is in low precision. torchao reports 1.1 for 8B to 1.5 for 405B (float8), and 1.28
for MXFP8, all compiled.
"""
_RECOMPUTING = {"none": 1.0, "selective": 7 / 6, "full": 4 / 3}
"""Forward and backward passes with activation checkpointing, in those without it: a layer that is computed
again costs another forward pass, a third of all; `selective` keeps every second product."""
PREFILL_EFFICIENCY = 0.5
"""Share of peak FLOPs that prefill reaches."""
DECODE_EFFICIENCY = 0.5
"""Share of the memory bandwidth, or of peak FLOPs, that decoding reaches."""
LINK_EFFICIENCY = 0.7
"""Share of a link's bandwidth that collectives reach."""
NETWORK = 5e10
"""Bytes per second between nodes for each GPU: 400 Gbit/s."""
HOST_LINK = 2e10
"""Bytes per second between a GPU and its host."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Mean lengths in tokens."""

    prompt: float
    response: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The time of one step and of the whole job."""

    parts: Mapping[str, float]
    """Seconds per step of each kind of work."""
    devices: int
    """Number of GPUs; on CPU, the number of nodes."""
    steps: int | None

    @property
    def step_seconds(self) -> float:
        """Seconds of one step, whose parts are assumed to follow each other."""
        return sum(self.parts.values())

    @property
    def device_hours(self) -> float | None:
        """GPU-hours of the whole job; None if the number of steps is not known."""
        return None if self.steps is None else self.step_seconds * self.steps * self.devices / 3600


def default_workload(spec: Spec) -> Workload:
    """Returns the assumed mean lengths: half of the longest response and a quarter of the longest prompt."""
    return Workload(spec.rollout.max_prompt_tokens / 4, spec.rollout.max_response_tokens / 2)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A planned job with everything that an estimate of its memory and time depends on."""

    spec: Spec
    plan: Plan
    needs: Needs
    model: Architecture
    device: Device
    load: Workload
    teacher: Architecture | None = None
    named_models: Mapping[str, Architecture] = field(default_factory=dict)
    """The models of `[[engines]]`, by the engine's name."""
    adapters: Mapping[str, StoredAdapter] = field(default_factory=dict)
    """The adapters of `[[engines]]`, by the engine's name."""
    drafts: Mapping[str, DraftModel] = field(default_factory=dict)
    """The draft models of SGLang servers, by the engine's name; that of `[engine]` is `POLICY_NAME`."""

    @property
    def critic(self) -> CriticSpec | None:
        """The critic; None if the algorithm does not need one."""
        return self.spec.critic if self.needs.critic else None

    @property
    def checkpoint_bytes(self) -> int:
        """The size of one checkpoint on disk."""
        optimizer = self.spec.checkpoint.optimizer
        return checkpoint_bytes(self.model, self.spec.trainer, self.critic, optimizer=optimizer)

    @property
    def on_gpu(self) -> bool:
        """Whether a device is a GPU; otherwise a device is a whole host."""
        return self.spec.cluster.gpus_per_node > 0

    def most_on_a_node(self, processes: Sequence[RankPlan | EnginePlan]) -> int:
        """Returns the largest number of these processes on any one node."""
        nodes = range(self.spec.cluster.nodes)
        return max(sum(process.location.node == node for process in processes) for node in nodes)


def estimate(job: PlannedJob, concurrent: int, sync_seconds: float) -> Estimate:
    """Returns the estimated time of a job whose engines decode `concurrent` samples at a time.

    `sync_seconds`: of one weight update (rlrun.runner.planning.sync_time).
    """
    spec, plan = job.spec, job.plan
    parts: dict[str, float] = {}
    if plan.engines:
        responses = plan.batch.prompts * plan.responses_per_prompt
        parts["generation"] = generation_seconds(job, responses / len(plan.generating_engines), concurrent)
    parts["training"] = step_training_seconds(job)
    if plan.engines:
        parts["weight sync"] = sync_seconds / spec.rollout.weight_update_interval
    devices = spec.cluster.gpus or spec.cluster.nodes
    return Estimate(parts, devices, plan.steps)


def generation_seconds(job: PlannedJob, samples: float, concurrent: int) -> float:
    """Returns the seconds of one engine per step: prefill, then decoding in waves of `concurrent` samples."""
    running = max(1.0, min(samples, concurrent))
    prefill = prompt_seconds(job) * samples / job.plan.responses_per_prompt
    return prefill + samples * job.load.response / running * decode_seconds(job, running)


def prompt_seconds(job: PlannedJob) -> float:
    """Returns the seconds of one prompt's prefill, which all of its samples share."""
    flops = job.device.flops * _engine_devices(job)
    return 2 * active_parameters(job.model) * job.load.prompt / (flops * PREFILL_EFFICIENCY)


def decode_seconds(job: PlannedJob, running: float) -> float:
    """Returns the seconds in which an engine makes one token for each of `running` samples.

    The engine reads the weights and the samples' caches once, and multiplies the weights by every token; the
    slower of both counts.
    """
    model, engine = job.model, job.spec.engine
    token_bytes = cache_token_bytes(model, engine) * (cache_copies(model, engine) if job.on_gpu else 1)
    cache = running * (job.load.prompt + job.load.response / 2) * token_bytes
    weights, _ = served_weight_bytes(model, engine)
    reads = (weights + cache) / job.device.bandwidth
    products = 2 * active_parameters(model) * running / job.device.flops
    return max(reads, products) / (_engine_devices(job) * DECODE_EFFICIENCY)


def _engine_devices(job: PlannedJob) -> float:
    """Returns the mean number of devices that share an engine's work; their communication is not counted."""
    engines = job.plan.generating_engines
    return sum(len(engine.locations) for engine in engines) / max(1, len(engines))


def step_training_seconds(job: PlannedJob) -> float:
    """Returns the seconds of all passes of a step over its samples."""
    tokens = training_tokens(job, share=job.spec.trainer.share_prefixes)
    whole = _training_seconds(job, tokens, 6 * active_parameters(job.model), reduced=1.0)
    share = policy_share(job.model, job.spec.trainer)
    update = _training_seconds(
        job,
        tokens,
        token_operations(job.model, job.spec.trainer),
        reduced=share.trained / share.parameters,
    )
    return update + _other_passes(job) / 3 * whole + _offload_seconds(job)


def _offload_seconds(job: PlannedJob) -> float:
    """Returns the seconds in which a step's state goes from host memory to the GPU and back."""
    moved = offloaded_bytes(job.model, job.spec.trainer) if job.on_gpu else 0
    return 2 * moved * job.plan.batch.optimizer_steps / HOST_LINK


def training_tokens(job: PlannedJob, *, share: bool) -> float:
    """Returns the number of tokens in a step's sequences; `share`: with each prompt once."""
    batch, load = job.plan.batch, job.load
    trained = job.needs.trained(batch.samples_per_prompt)
    copies = trained if share and is_shared(load.prompt, load.response) else 1
    return batch.prompts * trained * (load.prompt / copies + load.response)


def _training_seconds(job: PlannedJob, tokens: float, operations: int, *, reduced: float) -> float:
    """Returns the seconds of forward and backward passes over `tokens` tokens.

    `operations` are those of matrix products per token, and `reduced` is the share of the parameters whose
    gradients ranks add up. FSDP's gathers overlap with matrix products, so the slower of both counts.
    Tensor-parallel collectives wait for products and come on top, and the pipeline's bubble stretches
    everything. All pipeline ranks wait for the busiest of them.
    """
    spec, model, parallel = job.spec, job.model, job.spec.trainer.parallel
    data_rank_tokens = tokens / parallel.data_degree
    sample_tokens = job.load.prompt + job.load.response
    flops_per_token = operations + attention_operations(model, sample_tokens)
    ranks_per_sample = parallel.tensor * parallel.context * parallel.pipeline
    compute = data_rank_tokens * flops_per_token / ranks_per_sample / (job.device.flops * TRAIN_EFFICIENCY)
    compute *= pipeline_imbalance(model, parallel) * _RECOMPUTING[spec.trainer.activation_checkpointing]
    precision = spec.trainer.low_precision
    if precision is not None and not precision.rounds_weights_alone and job.on_gpu:
        compute /= LOW_PRECISION_SPEEDUP
    micro_batches = max(1, math.ceil(data_rank_tokens / full_micro_batch(spec.trainer, sample_tokens)))
    bubble = 1 + (parallel.pipeline - 1) / micro_batches
    return (
        max(compute, _gather_seconds(job, micro_batches, reduced)) + _tensor_seconds(job, data_rank_tokens)
    ) * bubble


def _gather_seconds(job: PlannedJob, micro_batches: int, reduced: float) -> float:
    """Returns the seconds of FSDP's traffic.

    Each micro-batch gathers the weights twice, or once if they stay gathered, and reduces the gradients of
    the trained ones, a share `reduced` of all, once.
    A pipeline reduces gradients once per optimizer step, and also gathers once if weights stay gathered.
    """
    spec, parallel = job.spec, job.spec.trainer.parallel
    weights = (
        parameter_count(job.model) * ITEM_BYTES[spec.trainer.dtype] / (parallel.tensor * parallel.pipeline)
    )
    shards = parallel.fsdp * parallel.context
    runs = min(micro_batches, job.plan.batch.optimizer_steps) if parallel.pipeline > 1 else micro_batches
    gathers = runs if parallel.keeps_gathered else 2 * micro_batches
    return (gathers + runs * reduced) * weights * (shards - 1) / shards / _link(job, shards * parallel.tensor)


def _tensor_seconds(job: PlannedJob, tokens: float) -> float:
    """Returns the seconds of tensor-parallel collectives: eight hidden states per token and layer."""
    model, parallel = job.model, job.spec.trainer.parallel
    elements = 8 * model.layers / parallel.pipeline * tokens / parallel.context * model.hidden
    sent = elements * ITEM_BYTES[job.spec.trainer.dtype] * (parallel.tensor - 1) / parallel.tensor
    return sent / _link(job, parallel.tensor)


def _other_passes(job: PlannedJob) -> float:
    """Returns the work per step besides the policy's update, in forward passes of the policy; a backward
    pass counts as two.
    """
    needs, several_steps = job.needs, job.plan.batch.optimizer_steps > 1
    recomputed = needs.old_log_probs and job.spec.trainer.old_log_probs == "trainer"
    before_update = recomputed and (several_steps or needs.policy_log_probs)
    current = needs.current_log_probs and may_be_stale(job.spec)
    policy = float(before_update or current or bool(needs.policy_statistics))
    critic = 4.0 if needs.critic else 0.0  # one pass for values, three for its update
    teacher = active_parameters(job.teacher) / active_parameters(job.model) if job.teacher else 0.0
    teacher = 1.0 if teacher_in_policy_layout(job.spec) else teacher
    return policy + needs.reference + critic + teacher * _longer_prompts(job)


def _longer_prompts(job: PlannedJob) -> float:
    """Returns the tokens that a teacher reads, in those of a sample: its own prompts are longer.

    The template counts a token for four characters, a solution as a response, and keys of rows not at all.
    """
    template = job.spec.teacher.prompt if job.spec.teacher is not None else None
    if template is None:
        return 1.0
    more = len(template) / 4 + job.load.response * (SOLUTION in template_names(template))
    return 1.0 + more / max(job.load.prompt + job.load.response, 1.0)


def _link(job: PlannedJob, ranks: int) -> float:
    """Returns the bytes per second between neighbours in a group of ranks."""
    within_node = ranks <= max(job.spec.cluster.gpus_per_node, 1)
    return (job.device.link if within_node else min(job.device.link, NETWORK)) * LINK_EFFICIENCY
