"""Translates verl's settings about batches, steps, devices and asynchrony."""

import re
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, name_after_file
from rlrun.converters.imports.spec_draft import plain_name

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MINI_BATCH = f"{_ACTOR}.ppo_mini_batch_size"
_SAMPLES = f"{_ROLLOUT}.n"
_CONTEXT = (
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    f"{_ACTOR}.ulysses_sequence_parallel_size",
    f"{_ACTOR}.megatron.context_parallel_size",
)
_DEGREES = {
    "tensor": f"{_ACTOR}.megatron.tensor_model_parallel_size",
    "pipeline": f"{_ACTOR}.megatron.pipeline_model_parallel_size",
    "expert": f"{_ACTOR}.megatron.expert_model_parallel_size",
}
_UNLIMITED_ATTEMPTS = 1000
_STALENESS = "trainer.v1.sampler.max_off_policy_threshold"


def run_name(draft: ImportDraft) -> None:
    """Sets the name of the run."""
    written = str(draft.value("trainer.experiment_name") or "")
    unknown = re.sub(r"\$\([^)]*\)|\$\{\w+\}|`[^`]*`", "", written)
    if (plain := plain_name(unknown)) and draft.given("trainer.experiment_name"):
        draft.put("name", plain, "trainer.experiment_name")
    else:
        name_after_file(draft)
    draft.drop("outputs are written to the run's folder, under `runs_dir`", "trainer.default_local_dir")


def batches(draft: ImportDraft) -> None:
    """Sets n and G; verl's mini-batch counts prompts."""
    group, prompts = draft.count(_SAMPLES), draft.count("data.train_batch_size")
    mini = draft.count(_MINI_BATCH)
    draft.put("rollout.samples_per_prompt", group, _SAMPLES)
    if mini > prompts or prompts % mini:
        draft.notes.append(
            f"{_MINI_BATCH} {mini} does not divide data.train_batch_size {prompts}, which verl refuses too: "
            "trainer.global_batch_size is all samples of a step"
        )
        mini = prompts
    comment = f"{mini} prompts · {group} samples; optimizer steps per step: {prompts // mini}"
    draft.put("trainer.global_batch_size", mini * group, _MINI_BATCH, comment=comment)
    if draft.count(f"{_ACTOR}.ppo_epochs") > 1:
        draft.drop("samples are trained on once in rlrun: use more optimizer steps", f"{_ACTOR}.ppo_epochs")
    if draft.value("data.gen_batch_size") is not None:
        started = draft.count("data.gen_batch_size", prompts)
        if started >= prompts:
            draft.put("rollout.oversample", started, "data.gen_batch_size")


def micro_batches(draft: ImportDraft) -> None:
    """Sets the token budget of micro-batches, or the number of their samples."""
    dynamic, budget = f"{_ACTOR}.use_dynamic_bsz", f"{_ACTOR}.ppo_max_token_len_per_gpu"
    size = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
    if draft.is_on(dynamic):
        draft.put("trainer.max_tokens_per_rank", draft.count(budget), budget, dynamic)
        draft.drop("no effect with use_dynamic_bsz", size, f"{_ACTOR}.ppo_micro_batch_size")
        return
    draft.drop("no effect without use_dynamic_bsz", budget)
    if draft.value(size) is not None:
        draft.put("trainer.micro_batch_size", draft.count(size), size)
    draft.drop("micro-batches are packed by tokens", f"{_ACTOR}.ppo_micro_batch_size", dynamic)


def sampling(draft: ImportDraft) -> None:
    """Sets from how many tokens engines sample."""
    name = f"{_ROLLOUT}.top_k"
    limit = int(draft.number(name))
    draft.put_given("rollout.top_k", limit if limit > 0 else -1, name)


def steps(draft: ImportDraft) -> None:
    """Sets the number of steps or epochs; both count as in rlrun."""
    if draft.value("trainer.total_training_steps") is not None:
        draft.put(
            "trainer.steps", draft.count("trainer.total_training_steps"), "trainer.total_training_steps"
        )
        draft.drop("no effect: total_training_steps takes precedence", "trainer.total_epochs")
    else:
        draft.put("trainer.epochs", draft.count("trainer.total_epochs"), "trainer.total_epochs")


def layout(draft: ImportDraft) -> None:
    """Sets nodes, GPUs and the degrees of parallelism."""
    nodes, gpus = draft.count("trainer.nnodes"), draft.count("trainer.n_gpus_per_node")
    draft.put("cluster.nodes", nodes, "trainer.nnodes")
    draft.put("cluster.gpus_per_node", gpus, "trainer.n_gpus_per_node")
    if nodes > 1:
        draft.join_cluster()
    context = max([(draft.count(name), name) for name in _CONTEXT], key=lambda degree: degree[0])
    degrees = {name: (draft.count(setting), setting) for name, setting in _DEGREES.items()}
    for name, (degree, setting) in {**degrees, "context": context}.items():
        if degree > 1:
            draft.put(f"trainer.parallel.{name}", degree, setting)
    ranks, model = nodes * gpus, context[0] * degrees["tensor"][0] * degrees["pipeline"][0]
    if ranks % model:
        draft.notes.append(
            f"{ranks} GPUs cannot be divided by {model} model-parallel ranks: change trainer.parallel"
        )
    _sharding(draft, max(1, ranks // model), f"{ranks} GPUs / {model}")


def _sharding(draft: ImportDraft, ranks: int, comment: str) -> None:
    """Sets the ranks that shard parameters, and the replicas of verl's fsdp_size."""
    setting = f"{_ACTOR}.fsdp_config.fsdp_size"
    size = int(draft.number(setting))
    if 0 < size < ranks and ranks % size == 0:
        draft.put("trainer.parallel.fsdp", size, setting)
        draft.put("trainer.parallel.replicate", ranks // size, setting)
    else:
        draft.set("trainer.parallel.fsdp", ranks, (), comment)


def asynchrony(draft: ImportDraft) -> None:
    """Sets asynchronous rollouts, and the nodes of their engines."""
    name, nodes = "trainer.v1.trainer_mode", "actor_rollout_ref.rollout.nnodes"
    mode = draft.value(name)
    if mode == "separate_async":
        engines = int(draft.number(nodes))
        draft.put("rollout.mode", "async", name)
        draft.put("rollout.max_staleness", draft.count(_STALENESS), _STALENESS)
        draft.put("cluster.placement", "disaggregated", name)
        total = draft.values["cluster"]["nodes"] + max(engines, 1)
        draft.put("cluster.nodes", total, nodes, "trainer.nnodes", comment="engines and trainer")
        draft.join_cluster()
    elif mode != "sync":
        draft.drop('has no counterpart: rollout.mode = "async" needs GPUs of its own for the engines', name)


def offload(draft: ImportDraft) -> None:
    """Sets what waits in host memory; of a model with adapters, only their state can."""
    everything = (
        f"{_ACTOR}.fsdp_config.param_offload",
        f"{_ACTOR}.fsdp_config.offload_policy",
        f"{_ACTOR}.megatron.param_offload",
    )
    optimizer = (f"{_ACTOR}.fsdp_config.optimizer_offload", f"{_ACTOR}.megatron.optimizer_offload")
    for names, value in ((everything, "all"), (optimizer, "optimizer")):
        on = [name for name in names if draft.is_on(name)]
        if on and not draft.has("trainer.offload"):
            has_adapters = draft.has("trainer.lora.rank")
            draft.put("trainer.offload", "optimizer" if has_adapters else value, *on)


def filters(draft: ImportDraft) -> None:
    """Sets dynamic sampling."""
    table = "algorithm.filter_groups"
    if not draft.is_on(f"{table}.enable"):
        return
    draft.put("filters.*.type", "nonzero_std", f"{table}.enable", f"{table}.metric")
    limit = int(draft.number(f"{table}.max_num_gen_batches"))
    attempts = limit if limit > 0 else _UNLIMITED_ATTEMPTS
    comment = "" if limit > 0 else "verl generates until enough groups pass"
    draft.put("rollout.max_attempts", attempts, f"{table}.max_num_gen_batches", comment=comment)


def checkpoints(draft: ImportDraft) -> None:
    """Sets how often checkpoints are written, and how many are kept."""
    keep: Any = draft.value("trainer.max_actor_ckpt_to_keep")
    if draft.number("trainer.save_freq") > 0:
        draft.put("checkpoint.interval", draft.count("trainer.save_freq"), "trainer.save_freq")
        kept = draft.count("trainer.max_actor_ckpt_to_keep") if keep else "all"
        draft.put("checkpoint.keep", kept, "trainer.max_actor_ckpt_to_keep")
    draft.drop_unused(
        "a checkpoint is written at the end", "trainer.save_freq", "trainer.max_actor_ckpt_to_keep"
    )
    draft.drop("the critic is in the same checkpoint", "trainer.max_critic_ckpt_to_keep")
