"""`rlrun plan --deep`: what one trainer rank holds, from a dry run of the trainer's own code; needs no torch.

The dry run is a process of its own (rlrun.runner.trainer.dry_run.rank), ended at its deadline.
"""

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.step_time import Case

SECONDS = 1800.0
"""Deadline: large models of many layers take minutes."""
ON_HOST = {"none": (), "optimizer": ("optimizer",), "all": ("parameters", "gradients", "optimizer")}
"""What `trainer.offload` keeps in host memory."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What to trace."""

    spec_json: str
    model: Architecture
    rank: int
    micro_batches: tuple[tuple[tuple[int, int], ...], ...]
    """Sequences as (prompt, response) tokens, of the rank's part of an optimizer step."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What it came to, in bytes."""

    request: DryRun
    most: Mapping[str, int]
    """By purpose, whenever that was."""
    peak: Mapping[str, int]
    """By purpose, when the device held most."""


def trace(case: Case, rank: int = 0, seconds: float = SECONDS) -> Traced:
    """Trace trainer rank `rank`.

    ValueError, with the reason, where the layout cannot be traced; TimeoutError after `seconds`;
    ModuleNotFoundError where torch is not installed.
    """
    request = dry_run_of(case, rank)
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlrun.runner.trainer.dry_run.rank"]
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(request),
            capture_output=True,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"the dry run of rank {request.rank} was not done after {seconds:g} s; fewer layers tell as much"
        ) from None
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(f"this layout cannot be traced: {reason}")
    answer = json.loads(done.stdout.decode().splitlines()[-1])
    if "error" in answer:
        raise ValueError(f"this layout cannot be traced: {answer['error']}")
    return Traced(request, answer["most"], answer["peak"])


def dry_run_of(case: Case, rank: int = 0) -> DryRun:
    """The request: full micro-batches of samples of mean length, or one of the longest where that is more."""
    spec, plan = case.spec, case.plan
    if rank >= len(plan.ranks):
        raise ValueError(f"--rank {rank}: there are ranks 0 to {len(plan.ranks) - 1}")
    if case.model.stored_tensors:
        raise ValueError('layers of model.implementation = "transformers" are not traced')
    response = case.load.response / (case.load.prompt + case.load.response)
    budget = max(plan.micro_batch_tokens, plan.max_sample_tokens)
    mean = round(case.load.prompt + case.load.response)
    length = budget if budget > plan.micro_batch_tokens else min(max(mean, 2), budget)
    batch = tuple(_sequences(budget, length, response))
    return DryRun(spec.model_dump_json(), case.model, rank, (batch,) * _count(case, budget))


def _sequences(budget: int, length: int, response: float) -> Iterable[tuple[int, int]]:
    """Sequences of `length` tokens that fill a micro-batch, a last one being shorter; `response`: the share
    of a sequence that is not prompt.
    """
    while budget >= 2:
        tokens = min(length, budget)
        responding = min(max(round(tokens * response), 1), tokens - 1)
        yield tokens - responding, responding
        budget -= tokens


def _count(case: Case, budget: int) -> int:
    """Micro-batches to trace: as many as a step has, unless more would change nothing."""
    parallel = case.spec.trainer.parallel
    samples = case.plan.batch.global_batch_size / parallel.data_degree
    count = math.ceil(samples * (case.load.prompt + case.load.response) / budget)
    if parallel.pipeline == 1:
        return min(count, 2)
    return count if parallel.pipeline_schedule == "GPipe" else min(count, 2 * parallel.stages)
