"""Traces the memory of one trainer rank for `rlrun plan --deep`, in a dry run of the trainer's own code.

The dry run is a separate process (rlrun.runner.trainer.dry_run.rank), which is killed at its deadline. This
module does not import torch.
"""

import json
import math
import os
import pickle
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.safe_python import own_python

DEADLINE_SECONDS = 1800.0
"""Deadline of a dry run; large models with many layers take minutes."""
OFFLOADED_PURPOSES = {
    "none": (),
    "optimizer": ("optimizer",),
    "all": ("parameters", "gradients", "optimizer"),
}
"""The purposes of memory that each value of `trainer.offload` moves to host memory."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """A request to trace a rank."""

    spec_json: str
    model: Architecture
    rank: int
    micro_batches: tuple[tuple[tuple[int, int], ...], ...]
    """The rank's micro-batches in an optimizer step; each sequence as its (prompt, response) tokens."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The memory that a dry run measured, in bytes."""

    request: DryRun
    most: Mapping[str, int]
    """The most that each purpose held at any time."""
    peak: Mapping[str, int]
    """What each purpose held when the device's total was highest."""


def trace_rank(job: PlannedJob, rank: int = 0, seconds: float = DEADLINE_SECONDS) -> RankTrace:
    """Traces trainer rank `rank`.

    Raises ValueError, with the reason, if the layout cannot be traced, TimeoutError after `seconds`, and
    ModuleNotFoundError if torch is not installed.
    """
    request = make_dry_run(job, rank)
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = own_python("-m", "rlrun.runner.trainer.dry_run.rank")
    try:
        process = subprocess.run(
            command,
            input=pickle.dumps(request),
            capture_output=True,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"the dry run of rank {request.rank} was not finished after {seconds:g} s: plan a model with "
            "fewer layers, whose memory per layer is the same"
        ) from None
    if process.returncode:
        reason = (process.stderr.decode(errors="replace").strip().splitlines() or ["no error output"])[-1]
        raise ValueError(f"this layout cannot be traced: {reason}")
    answer = json.loads(process.stdout.decode().splitlines()[-1])
    if "error" in answer:
        raise ValueError(f"this layout cannot be traced: {answer['error']}")
    return RankTrace(request, answer["most"], answer["peak"])


def make_dry_run(job: PlannedJob, rank: int = 0) -> DryRun:
    """Returns a request with full micro-batches of samples of mean length.

    If the longest sample does not fit a full micro-batch, each micro-batch has one such sample instead.
    """
    spec, plan = job.spec, job.plan
    if rank >= len(plan.ranks):
        raise ValueError(f"--rank {rank} does not exist: the ranks are 0 to {len(plan.ranks) - 1}")
    if job.model.stored_tensors:
        raise ValueError('--deep cannot trace layers of model.implementation = "transformers"')
    if job.model.tower is not None:
        raise ValueError(
            "--deep cannot trace a vision tower, whose shapes depend on the images: trace the text model "
            'with --set trainer.vision_tower="none"'
        )
    response = job.load.response / (job.load.prompt + job.load.response)
    budget = max(plan.micro_batch_tokens, plan.max_sample_tokens)
    mean = round(job.load.prompt + job.load.response)
    length = budget if budget > plan.micro_batch_tokens else min(max(mean, 2), budget)
    batch = tuple(_sequences(budget, length, response))
    return DryRun(spec.model_dump_json(), job.model, rank, (batch,) * _count(job, budget))


def _sequences(budget: int, length: int, response: float) -> Iterable[tuple[int, int]]:
    """Yields sequences of `length` tokens that fill a micro-batch; the last one may be shorter.

    `response` is the share of each sequence that is not prompt.
    """
    while budget >= 2:
        tokens = min(length, budget)
        response_tokens = min(max(round(tokens * response), 1), tokens - 1)
        yield tokens - response_tokens, response_tokens
        budget -= tokens


def _count(job: PlannedJob, budget: int) -> int:
    """Returns the number of micro-batches to trace: those of an optimizer step, up to a steady state."""
    parallel = job.spec.trainer.parallel
    samples = job.plan.batch.global_batch_size / parallel.data_degree
    count = math.ceil(samples * (job.load.prompt + job.load.response) / budget)
    if parallel.pipeline == 1:
        return min(count, 2)
    return count if parallel.pipeline_schedule == "GPipe" else min(count, 2 * parallel.stages)
