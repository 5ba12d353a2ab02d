"""What a trainer rank does on a pretended GPU: every call that a job makes of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch._dynamo.utils import counters

from rlrun.runner.batches.packing import all_micro_batches, plan_steps
from rlrun.runner.contracts.carriers import Output, TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.trainer.checkpoints.background_save import host_copy
from rlrun.runner.trainer.dry_run.fakes import without_launches
from rlrun.runner.trainer.model import head, varlen
from rlrun.runner.trainer.model import target as target_layers
from rlrun.runner.trainer.roles import critic, learner
from rlrun.runner.trainer.roles import rank as rank_module
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES
from tests.cuda.lone_rank import lone_rank
from tests.resolved_specs import resolved

PROMPT, RESPONSE = 10, 20
TOP_K = 8
SHARED_PROMPT = 40
EndPhase = Callable[[str], None]


def trace(end_phase: EndPhase, spec: dict[str, Any], folder: str, rank: int) -> dict[str, Any]:
    """Makes every call of a rank, each a phase; returns what budgets are multiplied by (`sizes_of`)."""
    job = resolved(spec)
    for module in (learner, critic):
        module.load_checkpoint = lambda *args, **settings: 1  # the files are read without a GPU
    calls = note_exact_calls()
    with lone_rank(job.trainer.parallel, rank), without_launches():
        trainer = TrainerRank(setup_of(job, folder, rank))
        end_phase("start")
        trace_steps(end_phase, trainer, job)
        for _ in trainer.policy.parameters.gather():
            pass
        end_phase("gather")
        trainer.offload()
        trainer.reload()
        end_phase("park")
        host_copy(trainer.policy.state())
        end_phase("save")
        trainer.policy.load(Path())
        end_phase("load")
        return sizes_of(trainer, job) | {name: sorted(noted) for name, noted in calls.items()}


def note_exact_calls() -> dict[str, set[Any]]:
    """Stands in for SGLang's kernels and for a compiled rotation, which need a driver.

    Returns what is noted in a job: into how many parts attention splits keys, the dtypes that the log-softmax
    and the rotation get, and whether SGLang's kernels were asked for.
    """
    noted: dict[str, set[Any]] = {"splits": set(), "softmax": set(), "rotation": set(), "kernels": set()}
    attention, softmax = varlen.varlen_attn, head.target_log_softmax

    def noted_attention(*inputs: Any, **settings: Any) -> Any:
        noted["splits"].add(settings["num_splits"] or 0)
        return attention(*inputs, **settings)

    def noted_softmax(logits: Any, *inputs: Any) -> Any:
        noted["softmax"].add(str(logits.dtype))
        return softmax(logits, *inputs)

    def noted_rotation(x: Any, *angles: Any) -> Any:
        noted["rotation"].add(str(x.dtype))
        return target_layers.rotation(x, *angles)

    varlen.varlen_attn, head.target_log_softmax = noted_attention, noted_softmax
    target_layers._compiled_rotation = lambda: noted_rotation
    rank_module.use_server_kernels = lambda: noted["kernels"].add("SGLang")
    return noted


def trace_steps(end_phase: EndPhase, trainer: TrainerRank, job: Spec) -> None:
    """Runs forward passes and optimizer steps with few micro-batches, then with many."""
    for label, count in zip(("few", "many"), micro_batches_of(job), strict=True):
        sequences, steps = step_of(job, count, trainer.policy._data_rank)
        if label == "few" or job.trainer.parallel.pipeline > 1:  # a pipeline makes new schedules
            warm_up(trainer, sequences, steps)
            end_phase(f"{label} warm-up")
        batches = all_micro_batches(steps)
        trainer.policy.log_probs(sequences, batches)
        end_phase(f"log-probs {label}")
        if trainer.reference is not None:
            trainer.reference.log_probs(sequences, batches)
            end_phase(f"reference {label}")
        if trainer.teacher is not None:
            trainer.teacher.outputs(sequences, batches, teachers_outputs(trainer))
            end_phase(f"teacher {label}")
        if trainer.critic is not None:
            trainer.critic.values(sequences, batches)
            end_phase(f"values {label}")
            trainer.critic.train(sequences, steps)
            end_phase(f"critic {label}")
        trainer.policy.train(sequences, steps)
        end_phase(f"train {label}")


def warm_up(trainer: TrainerRank, sequences: dict[int, TrainSequence], steps: list[TrainStep]) -> None:
    """Runs every model once, which initializes FSDP, schedules and optimizer state."""
    trainer.policy.log_probs(sequences, all_micro_batches(steps))
    trainer.policy.train(sequences, steps)
    if trainer.teacher is not None:
        trainer.teacher.outputs(sequences, all_micro_batches(steps), teachers_outputs(trainer))
    if trainer.critic is not None:
        trainer.critic.values(sequences, all_micro_batches(steps))
        trainer.critic.train(sequences, steps)


def setup_of(job: Spec, folder: str, rank: int) -> TrainerSetup:
    """Returns the arguments of a rank."""
    return TrainerSetup(
        spec_json=job.model_dump_json(),
        model_folder=folder,
        rank=rank,
        device="cuda",
        world_size=job.trainer.parallel.world_size,
        master_addr="127.0.0.1",
        master_port=1,
        threads=1,
        optimizer_steps=10,
        teacher_folder=job.teacher.path if job.teacher is not None else None,
    )


def teachers_outputs(trainer: TrainerRank) -> tuple[Output, ...]:
    """Returns what the algorithm asks the teacher for."""
    if trainer._algorithm.needs.divergence is None:
        return ("log_probs",)
    return ("log_probs", "top_ids", "top_log_probs")


def sizes_of(trainer: TrainerRank, job: Spec) -> dict[str, int]:
    """Returns the numbers of micro-batches, of optimizer steps, of the rank's layers with experts, and of the
    graphs that were compiled.
    """
    few, many = micro_batches_of(job)
    layers = [layer for decoder in trainer.policy.model.decoders for layer in decoder.layers.values()]
    sparse = sum(getattr(layer, "moe_enabled", False) for layer in layers)
    return {
        "few": few,
        "many": many,
        "optimizer steps": job.trainer.optimizer_steps or 1,
        "sparse layers": sparse,
        "graphs": counters["stats"]["unique_graphs"],
    }


def micro_batches_of(spec: Spec) -> tuple[int, int]:
    """Returns two numbers of micro-batches, to tell what happens once per step from what each of them does.

    A pipeline's schedule runs with both without empty micro-batches.
    """
    parallel = spec.trainer.parallel
    few = parallel.pipeline if parallel.pipeline_schedule in ONE_STAGE_SCHEDULES else 2 * parallel.pipeline
    return (1, 2) if parallel.pipeline == 1 else (few, 2 * few)


def step_of(
    spec: Spec, micro_batches: int, data_rank: int
) -> tuple[dict[int, TrainSequence], list[TrainStep]]:
    """Returns a data rank's sequences, all of one length, and optimizer steps with this number of
    micro-batches on every data rank.
    """
    degree, num_steps = spec.trainer.parallel.data_degree, spec.trainer.optimizer_steps
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
    if spec.algorithm.type == "gkd":
        ids, log_probs = np.zeros((RESPONSE, TOP_K), np.int32), np.zeros((RESPONSE, TOP_K + 1), np.float32)
        sequence = replace(sequence, teacher_top_ids=ids, teacher_top_log_probs=log_probs)
    per_batch = 2 if spec.trainer.share_prefixes else 1
    count = num_steps * degree * micro_batches * per_batch
    sequences = [replace(sequence, execution=str(i)) for i in range(count)]
    if spec.trainer.share_prefixes:
        sequences = [with_shared_prompt(each, index // 2, rng) for index, each in enumerate(sequences)]
    steps = plan_steps(
        sequences,
        optimizer_steps=num_steps,
        reduction=spec.trainer.reduction,
        max_batch_tokens=spec.trainer.max_tokens_per_rank,
        max_length=512,
        max_response_tokens=64,
        data_degree=degree,
        micro_batch_size=per_batch,
        share_prefixes=spec.trainer.share_prefixes,
    )
    own = {i for step in steps for batch in step.micro_batches[data_rank] for i in batch}
    return {i: sequences[i] for i in own}, steps


def with_shared_prompt(sequence: TrainSequence, group: int, rng: np.random.Generator) -> TrainSequence:
    """Returns the sequence with a group's prompt and random response tokens."""
    prompt = np.full(SHARED_PROMPT, group, np.int32)
    response = rng.integers(0, 300, RESPONSE).astype(np.int32)
    return replace(sequence, tokens=np.concatenate((prompt, response)), prompt_length=SHARED_PROMPT)
