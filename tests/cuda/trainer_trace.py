"""Traces trainer ranks on a pretended GPU: reads cases from standard input, writes a line of JSON for each.

python -m tests.cuda.trainer_trace, one process with everything imported
  └─ a fork for each case: TrainerRank on fake tensors ─▶ {"phases": …, "defects": …, "error": …}
"""

from tests.cuda import fake_cuda
from tests.cuda.recording import Recorder, Recording

RECORDING = Recording()
if __name__ == "__main__":
    fake_cuda.install(RECORDING)

# ruff: noqa: E402
# isort: split
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from rlrun.models.tensor_names import HfTensor
from rlrun.runner.batches.packing import all_micro_batches, plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.trainer import process
from rlrun.runner.trainer.checkpoints.background_save import host_copy
from rlrun.runner.trainer.compat.experts import AllToAllTokenDispatcher
from rlrun.runner.trainer.compat.meshes import FakeStore
from rlrun.runner.trainer.dry_run.fakes import even_routing
from rlrun.runner.trainer.model import build_decoder, transformers_decoder
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.model.transformers_decoder import TransformersDecoder
from rlrun.runner.trainer.parameters import gathering
from rlrun.runner.trainer.roles import learner
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES

PROMPT, RESPONSE = 10, 20


def main() -> None:
    """Answers one case after the other."""
    for module in ("torch._dynamo", "torch.distributed.pipelining", "transformers"):
        import_module(module)  # once, for all forks

    for line in sys.stdin:
        reading, writing = os.pipe()
        if not os.fork():
            answer = json.dumps(traced(json.loads(line)))
            with os.fdopen(writing, "w") as pipe:
                pipe.write(answer)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read() or json.dumps({"error": "the process died", "phases": {}, "defects": {}})
        os.wait()
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def traced(case: dict[str, Any]) -> dict[str, Any]:
    """Returns what a case's rank does in each phase; `error` is None or where it failed."""
    phases: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    error = None
    spec = Spec.model_validate(case["spec"])
    try:
        with pretence(case):
            rank = TrainerRank(setup_of(case))
            sizes = sizes_of(rank, spec)
            for name, act in phases_of(rank, spec):
                act()
                phases[name] = RECORDING.take()
    except Exception as failure:
        error = own_lines(failure)
    defects, seconds = dict(RECORDING.defects), time.process_time()
    return {"phases": phases, "sizes": sizes, "defects": defects, "error": error, "seconds": seconds}


def sizes_of(rank: TrainerRank, spec: Spec) -> dict[str, int]:
    """Returns what budgets are multiplied by."""
    few, many = micro_batches_of(spec)
    computing, _ = rank.policy.parameters.holders
    layers = [layer for decoder in rank.policy.model.decoders for layer in decoder.layers.values()]
    sparse = sum(getattr(layer, "moe_enabled", False) for layer in layers)
    return {"few": few, "many": many, "tensors": len(computing), "sparse layers": sparse}


def own_lines(failure: Exception) -> str:
    """Returns an exception with the lines of rlrun and of the tests that led to it, and the last one."""
    frames = traceback.extract_tb(failure.__traceback__)
    shown = [frame for frame in frames[:-1] if "/site-packages/" not in frame.filename] + frames[-1:]
    return "".join([*traceback.format_list(shown), *traceback.format_exception_only(failure)])


def setup_of(case: dict[str, Any]) -> TrainerSetup:
    """Returns the arguments of the case's rank."""
    spec = Spec.model_validate(case["spec"])
    return TrainerSetup(
        spec_json=spec.model_dump_json(),
        model_folder=case["folder"],
        rank=case["rank"],
        device="cuda",
        world_size=spec.trainer.parallel.world_size,
        master_addr="127.0.0.1",
        master_port=1,
        threads=1,
        optimizer_steps=10,
    )


Phases = Iterator[tuple[str, Callable[[], object]]]


def phases_of(rank: TrainerRank, spec: Spec) -> Phases:
    """Yields what a job asks of a rank, in order; the first two are not compared with a budget."""
    yield "start", lambda: None
    (few, few_steps), (many, many_steps) = (step_of(spec, count) for count in micro_batches_of(spec))
    yield "warm-up", lambda: forward_and_train(rank, few, few_steps)
    for label, sequences, steps in (("few", few, few_steps), ("many", many, many_steps)):
        batches = all_micro_batches(steps)
        if label == "many" and spec.trainer.parallel.pipeline > 1:
            yield "new schedules", partial(forward_and_train, rank, sequences, steps)
        yield f"log-probs {label}", partial(rank.policy.log_probs, sequences, batches)
        if rank.reference is not None:
            yield f"reference {label}", partial(rank.reference.log_probs, sequences, batches)
        if rank.critic is not None:
            yield f"values {label}", partial(rank.critic.values, sequences, batches)
            yield f"critic {label}", partial(rank.critic.train, sequences, steps)
        yield f"train {label}", partial(rank.policy.train, sequences, steps)
    yield "gather", lambda: list(rank.policy.parameters.gather())
    yield "park", lambda: (rank.offload(), rank.reload())
    yield "save", lambda: host_copy(rank.policy.state())
    yield "load", lambda: rank.policy.load(Path())


def forward_and_train(rank: TrainerRank, sequences: list[TrainSequence], steps: list[TrainStep]) -> None:
    """Runs every model once, which initializes FSDP, schedules and optimizer state."""
    rank.policy.log_probs(sequences, all_micro_batches(steps))
    rank.policy.train(sequences, steps)
    if rank.critic is not None:
        rank.critic.values(sequences, all_micro_batches(steps))
        rank.critic.train(sequences, steps)


def micro_batches_of(spec: Spec) -> tuple[int, int]:
    """Returns two numbers of micro-batches, to tell what happens once per step from what each of them does.

    A pipeline's schedule runs with both without empty micro-batches.
    """
    parallel = spec.trainer.parallel
    few = parallel.pipeline if parallel.pipeline_schedule in ONE_STAGE_SCHEDULES else 2 * parallel.pipeline
    return (1, 2) if parallel.pipeline == 1 else (few, 2 * few)


def step_of(spec: Spec, micro_batches: int) -> tuple[list[TrainSequence], list[TrainStep]]:
    """Returns sequences of one length, and a step with this number of micro-batches on every data rank."""
    degree = spec.trainer.parallel.data_degree
    rng = np.random.default_rng(0)
    zeros, ones = np.zeros(RESPONSE, np.float32), np.ones(RESPONSE, np.float32)
    sequence = TrainSequence(
        tokens=rng.integers(0, 300, PROMPT + RESPONSE).astype(np.int32),
        prompt_length=PROMPT,
        loss_mask=ones,
        advantages=ones,
        rollout_log_probs=zeros,
        execution="",
        reference_log_probs=zeros if spec.algorithm.type != "ppo" else None,
        values=zeros,
        returns=zeros,
    )
    sequences = [replace(sequence, execution=str(i)) for i in range(degree * micro_batches)]
    steps = plan_steps(
        sequences,
        optimizer_steps=spec.trainer.optimizer_steps or 1,
        reduction=spec.trainer.reduction,
        max_tokens=spec.trainer.max_tokens_per_rank,
        max_length=512,
        max_response_tokens=64,
        data_degree=degree,
        micro_batch_size=1,
    )
    return sequences, steps


@contextmanager
def pretence(case: dict[str, Any]) -> Iterator[None]:
    """Within the context a rank of a job runs on fake tensors, without its peers."""
    spec = Spec.model_validate(case["spec"])
    parallel = spec.trainer.parallel
    with ExitStack() as stack:
        if parallel.world_size > 1:
            # As NCCL's, a group of CUDA tensors alone.
            dist.init_process_group(
                "cuda:fake", store=FakeStore(), rank=case["rank"], world_size=parallel.world_size
            )
        _replace_peers(parallel.pipeline)
        _lay_out_for_real()
        learner.load_checkpoint = lambda *args: 1
        waits = _waits_of_routing()
        stack.enter_context(even_routing())
        _keep_waits(*waits)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Recorder(RECORDING))
        yield


def _replace_peers(pipeline: int) -> None:
    """Answers for the other ranks of a pipeline: the next one has the parameters of all other stages."""
    real_init = gathering.Gathering.__init__

    def init(self: Any, tensors: Sequence[HfTensor], names: Any, stages: Any) -> None:
        def owners(names: Any, stages: Any) -> dict[str, int]:
            mine, me = set(names), 0 if stages is None else dist.get_rank(stages)
            return {
                tensor.parameter: me if tensor.parameter in mine else (me + 1) % pipeline
                for tensor in tensors
            }

        gathering._owners = owners
        real_init(self, tensors, names, stages)

    gathering.Gathering.__init__ = init


def _waits_of_routing() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the two functions that read from the device how many tokens each expert has."""
    return AllToAllTokenDispatcher._sync_token_count_exchange, Experts.counts


def _keep_waits(exchange: Callable[..., Any], counts: Callable[..., Any]) -> None:
    """Also runs the functions that `even_routing` replaced, for their waits; their results mean nothing."""
    even_exchange, even_counts = _waits_of_routing()

    def exchanged(*args: Any) -> Any:
        exchange(*args)
        return even_exchange(*args)

    def counted(*args: Any) -> Any:
        counts(*args)
        return even_counts(*args)

    AllToAllTokenDispatcher._sync_token_count_exchange = exchanged
    Experts.counts = staticmethod(counted)


def _lay_out_for_real() -> None:
    """Runs what lays models out over ranks outside of the fake mode, which does not know DTensors and meshes.

    Parameters are on meta there, without content either; their memory is allocated in the fake mode.
    """
    for owner, name in (
        (process, "_mesh"),
        (PackedDecoder, "__init__"),
        (PackedDecoder, "parallelize"),
        (build_decoder, "shard_data_parallel"),
        (TransformersDecoder, "__init__"),
        (transformers_decoder.AutoModelForCausalLM, "from_config"),
        (transformers_decoder, "shard_plain_modules"),
    ):
        setattr(owner, name, _outside_fake_mode(getattr(owner, name)))


def _outside_fake_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return outside


if __name__ == "__main__":
    main()
