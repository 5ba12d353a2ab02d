"""A whole optimizer step of the trainer: its time, MFU, memory against the plan, and the profiler's top; its
overhead over a bare loop; parking, weights and saving.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from trainer_overhead import Bare

from benchmarks.gpu.models import (
    DEVICE,
    FOLDER,
    ON_GPU,
    make_rank,
    make_sequences,
    make_spec,
    model_folder,
    pack_steps,
    seconds_of,
    synchronize,
)
from benchmarks.gpu.results import Case, Goal, Measurement, Skipped
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.planning.hardware import GIB, local_gpu
from rlrun.runner.planning.memory import CUDA_CONTEXT_BYTES, training_phase
from rlrun.runner.planning.model_size import active_parameters
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.specs.sections.job import Spec

TOKENS = 16384 if ON_GPU else 256
"""Tokens of a micro-batch."""
SEQUENCES, LONGEST = (64, 2048) if ON_GPU else (8, 60)
ROUNDS = 5 if ON_GPU else 2
TOP = 24
"""How many of the profiler's kernels are reported."""
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"offload": "none", "activation_checkpointing": "none"},
    {"offload": "none", "activation_checkpointing": "selective"},
    {"offload": "none", "activation_checkpointing": "full"},
    {"offload": "optimizer", "activation_checkpointing": "selective"},
    {"offload": "optimizer", "activation_checkpointing": "full"},
    {"offload": "all", "activation_checkpointing": "full"},
)
"""From the fastest to the smallest: a model is measured with the first that the plan says will fit."""


def step(name: str, goals: tuple[Goal, ...] = (), **trainer: Any) -> Measurement:
    """Measures a step of a model, with these keys in `[trainer]` or with the first settings that fit."""
    spec = make_bfloat16_spec(name, **(trainer or settings_that_fit(name)))
    start = time.perf_counter()
    rank = make_rank(spec)
    build_seconds = time.perf_counter() - start
    sequences, steps = batch(spec)
    rank.policy.train(sequences, steps)
    reset_peak()
    metrics: list[dict[str, float]] = []
    seconds = seconds_of(lambda: metrics.extend(rank.policy.train(sequences, steps)))
    figures = {
        "build_seconds": build_seconds,
        "seconds": seconds,
        "tokens_per_second": sum(len(sequence.tokens) for sequence in sequences) / seconds,
        "micro_batches": len(steps[0].micro_batches[0]),
        **memory(spec, max(len(sequence.tokens) for sequence in sequences)),
        "perf": {name: value for name, value in metrics[0].items() if name.startswith("perf/")},
        **{key: getattr(spec.trainer, key) for key in ("offload", "activation_checkpointing", "compile")},
    }
    if ON_GPU:
        figures |= {"mfu": mfu(spec, sequences, seconds)} if local_gpu() else {}
        figures |= profile(rank, spec, sequences)
    rank.close()
    held = tuple(goal for goal in goals if ON_GPU and goal.figure in figures)
    return Measurement(figures, held)


def make_bfloat16_spec(name: str, **trainer: Any) -> Spec:
    folder = model_folder(name)
    return make_spec(folder, random_init=True, dtype="bfloat16", max_tokens_per_rank=TOKENS, **trainer)


def settings_that_fit(name: str) -> Mapping[str, Any]:
    """Returns the first settings whose planned memory is free on the device."""
    if not ON_GPU:
        return SETTINGS[0]
    free, _ = torch.cuda.mem_get_info()
    for settings in SETTINGS:
        if planned_bytes(make_bfloat16_spec(name, **settings), LONGEST) < 0.97 * free:
            return settings
    raise Skipped(f"{name} does not fit: {free / GIB:.0f} GiB are free")


def planned_bytes(spec: Spec, longest: int) -> int:
    """Returns the planned memory of torch's tensors."""
    phase = training_phase(architecture_of(spec), spec.trainer, longest, gpu=True)
    return phase.bytes - CUDA_CONTEXT_BYTES


def architecture_of(spec: Spec) -> Architecture:
    return read_architecture(Path(spec.model.path))


def memory(spec: Spec, longest: int) -> dict[str, object]:
    """Returns the peak of a step and the plan's, in GiB, and the plan's share of it."""
    planned = planned_bytes(spec, longest)
    if not ON_GPU:
        return {"planned_gib": planned / GIB}
    peak = torch.cuda.max_memory_allocated()
    return {
        "peak_gib": peak / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "planned_gib": planned / GIB,
        "plan_off_by": abs(planned / peak - 1),
    }


def mfu(spec: Spec, sequences: Any, seconds: float) -> float:
    """Returns the share of the device's dense bfloat16 speed that the model's own operations reached; what
    checkpointing computes again does not count.
    """
    model, gpu = architecture_of(spec), local_gpu()
    assert gpu is not None
    lengths = [len(sequence.tokens) for sequence in sequences]
    products = 6 * active_parameters(model) * sum(lengths)
    # 12 operations per pair of tokens and channel, of which causality leaves half
    attention = 6 * model.layers * model.heads * model.head_dim * sum(length**2 for length in lengths)
    return (products + attention) / seconds / gpu.flops


def profile(rank: TrainerRank, spec: Spec, sequences: Any) -> dict[str, object]:
    """Returns the GPU's busy share of a step of one micro-batch, and the kernels that take most of it, in
    milliseconds. Of a whole step the profiler's own work takes longer than everything else here.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    few = sequences[: SEQUENCES // 8]
    steps = pack_steps(spec, few)
    seconds = seconds_of(lambda: rank.policy.train(few, steps))
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        seconds_of(lambda: rank.policy.train(few, steps))
    milliseconds: Counter[str] = Counter()
    for event in recorded.key_averages():
        milliseconds[kernel_name(event.key)] += event.self_device_time_total / 1e3
    return {
        "busy_share": milliseconds.total() / 1e3 / seconds,
        "profiled_tokens": sum(len(sequence.tokens) for sequence in few),
        "profiled_milliseconds": 1e3 * seconds,
        "top_milliseconds": dict(milliseconds.most_common(TOP)),
    }


def kernel_name(key: str) -> str:
    """Returns what tells a kernel from others: without its namespaces, and shortened at both ends."""
    short = key.replace("void ", "").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return short if len(short) <= 100 else f"{short[:60]}…{short[-39:]}"


def batch(spec: Spec) -> tuple[Any, Any]:
    vocabulary = architecture_of(spec).vocab
    sequences = make_sequences(SEQUENCES, 16, LONGEST, vocabulary)
    return sequences, pack_steps(spec, sequences)


def reset_peak() -> None:
    synchronize()
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()


@cache
def shared_rank() -> tuple[TrainerRank, Spec, Any, Any]:
    """Returns a rank of the small model that has taken a step, for the cases that need no other settings."""
    spec = make_bfloat16_spec("0.6B")
    rank = make_rank(spec)
    sequences, steps = batch(spec)
    rank.policy.train(sequences, steps)
    return rank, spec, sequences, steps


def close() -> None:
    """Removes the shared rank's memory segments."""
    if shared_rank.cache_info().currsize:
        shared_rank()[0].close()


def overhead() -> Measurement:
    """Compares the trainer's step with a bare loop over the same torchtitan decoder, in turns."""
    rank, spec, sequences, steps = shared_rank()
    bare = Bare(SimpleNamespace(rank=rank, device=DEVICE), spec, sequences, steps[0])
    bare.step()
    rounds = [
        (seconds_of(lambda: rank.policy.train(sequences, steps)), seconds_of(bare.step))
        for _ in range(ROUNDS)
    ]
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    figures = {
        "overhead": ratios[len(ratios) // 2] - 1,
        "seconds": rounds[-1][0],
        "bare_seconds": rounds[-1][1],
    }
    return Measurement(figures, (Goal("overhead", "<=", 0.02),) if ON_GPU else ())


def parking() -> Measurement:
    """Moves a rank's state to host memory and back twice, as for colocated engines."""
    rank, *_ = shared_rank()
    before = log_probs()
    held, left = allocated(), 0
    seconds: dict[str, list[float]] = {"offload_seconds": [], "reload_seconds": []}
    for _ in range(2):
        seconds["offload_seconds"].append(seconds_of(rank.offload))
        left = allocated()
        seconds["reload_seconds"].append(seconds_of(rank.reload))
    figures = {
        **seconds,
        "held_gib": held / GIB,
        "left_mib": left / 2**20,
        "same_log_probs": np.array_equal(log_probs(), before),
    }
    return Measurement(figures, (Goal("same_log_probs", "==", True), Goal("left_mib", "<=", 512)))


def log_probs() -> np.ndarray:
    """Returns the log-probs of the shared rank's sequences, one after the other."""
    rank, _, sequences, steps = shared_rank()
    found = rank.policy.log_probs(sequences, all_micro_batches(steps))
    return np.concatenate([found[index] for index in range(len(sequences))])


def allocated() -> int:
    """Returns the bytes of torch's tensors on the GPU."""
    return torch.cuda.memory_allocated() if ON_GPU else 0


def weights() -> Measurement:
    """Writes the weights for a native engine twice: the first time allocates."""
    rank, *_ = shared_rank()
    seconds = [seconds_of(lambda version=version: rank.write_weights(version)) for version in (1, 2, 3)]
    update = rank.write_weights(4)
    assert update is not None
    figures = {
        "gib": update.size / GIB,
        "seconds": seconds,
        "gib_per_second": update.size / GIB / seconds[-1],
    }
    return Measurement(figures)


def saving() -> Measurement:
    """Saves a checkpoint in the background, takes a step, and loads what was saved."""
    rank, _, sequences, steps = shared_rank()
    folder, saved = FOLDER / "checkpoint", log_probs()
    copying = seconds_of(lambda: rank.begin_save(folder))
    writing = seconds_of(lambda: wait_for(rank.saved))
    rank.policy.train(sequences, steps)
    moved = not np.array_equal(log_probs(), saved)
    loading = seconds_of(lambda: rank.load(folder))
    figures = {
        "copy_seconds": copying,
        "write_seconds": writing,
        "load_seconds": loading,
        "restored": moved and np.array_equal(log_probs(), saved),
    }
    return Measurement(figures, (Goal("restored", "==", True),))


def wait_for(done: Callable[[], object]) -> None:
    while done() is None:
        time.sleep(0.05)


def compiled(name: str = "0.6B") -> Measurement:
    if not ON_GPU:
        raise Skipped("on a CPU it takes minutes")
    return step(name, **settings_that_fit(name), compile=True)


PLAN = Goal("plan_off_by", "<=", 0.1)
CASES: Mapping[str, Case] = {
    "4B": partial(step, "4B", (Goal("mfu", ">=", 0.4), PLAN)),
    "0.6B": partial(step, "0.6B", (PLAN,)),
    "MoE": partial(step, "MoE", (PLAN,)),
    "overhead": overhead,
    "parking": parking,
    "weights": weights,
    "saving": saving,
    "offload optimizer": partial(step, "0.6B", (PLAN,), offload="optimizer"),
    "offload all": partial(step, "0.6B", (PLAN,), offload="all"),
    "compile": compiled,
    "4B compiled": partial(compiled, "4B"),
    "float8": partial(step, "4B", compile=True, precision="float8"),
}
