"""Several ranks, each on a GPU of its own (two processes over gloo on the CPU), against transformers in
float32: log-probs and the gradients' norm of each kind of parallelism.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard

from benchmarks.gpu.models import (
    FOLDER,
    ON_GPU,
    free_port,
    make_rank,
    make_sequences,
    make_spec,
    model_folder,
    pack_steps,
)
from benchmarks.gpu.parity import difference, load_reference, log_probs_and_norm
from benchmarks.gpu.results import Case, Goal, Measurement, Skipped
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.gpu_support import HOPPER
from rlrun.specs.sections.job import Spec

RANKS = min(torch.cuda.device_count(), 8) // 2 * 2 if ON_GPU else 2
"""An even number, which the layouts divide."""
SECONDS = 150.0
GOALS = (Goal("max_difference", "<=", 1e-4), Goal("gradient_norm_ratio_off_by", "<=", 1e-3))


def parity(name: str, **parallel: Any) -> Measurement:
    """Compares a layout of all ranks."""
    check_support()
    folder = model_folder(name, "float32")
    spec = make_spec(folder, dtype="float32", max_tokens_per_rank=512, max_grad_norm=1e9, parallel=parallel)
    log_probs, norms = results_of(spec, FOLDER / f"ranks-{name}-{'-'.join(parallel)}")
    sequences = make_sequences(8, 20, 60, 300)
    [step] = pack_steps(spec, sequences, spec.trainer.parallel.data_degree)
    expected, norm = log_probs_and_norm(load_reference(folder), sequences, step, spec.rollout.temperature)
    figures = {
        "ranks": RANKS,
        "layout": parallel,
        "sequences": len(log_probs),
        "max_difference": float(difference(log_probs, expected).max()),
        "gradient_norm_ratio_off_by": max(abs(value / norm - 1) for value in norms),
    }
    return Measurement(figures, (*GOALS, Goal("sequences", "==", len(sequences))))


def check_support() -> None:
    """Raises Skipped where this host cannot run several ranks."""
    if RANKS < 2:
        raise Skipped("it needs two GPUs")
    if "dp_mesh_dims" not in signature(fully_shard).parameters:
        raise Skipped(f"torch {torch.__version__} cannot shard a model as torchtitan asks it to")


def results_of(spec: Spec, out: Path) -> tuple[dict[int, np.ndarray], list[float]]:
    """Returns the log-probs of all sequences, and the gradients' norm on each rank."""
    out.mkdir(parents=True)
    (out / "spec.json").write_text(spec.model_dump_json())
    run_ranks(out)
    log_probs, norms = {}, []
    for file in out.glob("*.npz"):
        arrays = np.load(file)
        norms.append(float(arrays["norm"]))
        log_probs |= {int(index): arrays[index] for index in arrays.files if index != "norm"}
    return log_probs, norms


def needs_gpus(name: str, **parallel: Any) -> Measurement:
    """Compares a layout whose exchanges only GPUs have."""
    if not ON_GPU:
        raise Skipped("it needs GPUs")
    if parallel.get("symmetric_memory") and torch.cuda.get_device_capability() < HOPPER:
        raise Skipped("it needs GPUs from Hopper on")
    return parity(name, **parallel)


def deepep() -> Measurement:
    """Compares DeepEP's exchange with NCCL's, in bfloat16: DeepEP takes nothing else."""
    if not ON_GPU or torch.cuda.get_device_capability() < HOPPER or find_spec("deep_ep") is None:
        raise Skipped("it needs GPUs from Hopper on, and the package deep_ep (DeepEP 2)")
    check_support()
    (plain, plain_norm), (ours, norm) = (
        _exchanged(token_dispatcher) for token_dispatcher in ("standard", "deepep")
    )
    figures = {
        "mean_difference": float(difference(ours, plain).mean()),
        "gradient_norm_ratio_off_by": abs(norm / plain_norm - 1),
    }
    return Measurement(
        figures, (Goal("mean_difference", "<=", 0.02), Goal("gradient_norm_ratio_off_by", "<=", 0.02))
    )


def _exchanged(token_dispatcher: str) -> tuple[dict[int, np.ndarray], float]:
    layout = {"fsdp": RANKS, "expert": RANKS, "token_dispatcher": token_dispatcher}
    spec = make_spec(
        model_folder("MoE", "bfloat16"), dtype="bfloat16", max_tokens_per_rank=512, parallel=layout
    )
    log_probs, norms = results_of(spec, FOLDER / f"ranks-{token_dispatcher}")
    return log_probs, norms[0]


def run_ranks(out: Path) -> None:
    """Runs all ranks; RuntimeError with the end of the first log of a rank that failed."""
    port, processes = free_port(), []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(rank) for rank in range(RANKS)]
    for rank in range(RANKS):
        command = [sys.executable, "-m", "benchmarks.gpu.ranks", str(rank), str(port), str(out)]
        with (out / f"{rank}.log").open("wb") as log:
            environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpus[rank]} if ON_GPU else {})
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, code in enumerate(codes):
        if code:
            end = (out / f"{rank}.log").read_text(errors="replace").strip()[-500:]
            raise RuntimeError(f"rank {rank} ended with exit code {code}: {end}")


def work(rank: int, port: int, out: Path) -> None:
    """Is one rank: writes the log-probs that it returns, and the gradients' norm."""
    spec = Spec.model_validate_json((out / "spec.json").read_text())
    parallel = spec.trainer.parallel
    trainer = make_rank(spec, rank, parallel.world_size, port)
    sequences = make_sequences(8, 20, 60, 300)
    steps = pack_steps(spec, sequences, parallel.data_degree)
    log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    [metrics] = trainer.policy.train(sequences, steps)
    arrays = {str(index): values for index, values in log_probs.items()}
    np.savez(out / f"{rank}.npz", norm=metrics["train/grad_norm"], **arrays)
    trainer.close()


CASES: Mapping[str, Case] = {
    "FSDP": partial(parity, "0.6B", fsdp=RANKS),
    "tensor": partial(parity, "0.6B", fsdp=RANKS // 2, tensor=2),
    "context": partial(parity, "0.6B", fsdp=RANKS // 2, context=2),
    "pipeline": partial(parity, "0.6B", fsdp=RANKS // 2, pipeline=2),
    "experts": partial(parity, "MoE", fsdp=RANKS, expert=RANKS),
    "async tensor": partial(needs_gpus, "0.6B", fsdp=RANKS // 2, tensor=2, async_tensor=True),
    "symmetric memory": partial(needs_gpus, "0.6B", fsdp=RANKS, symmetric_memory=True),
    "DeepEP": deepep,
}

if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
