"""Translates prime-rl's settings about batches, lengths, the loss, the optimizer and the devices."""

from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, name_after_file
from rlrun.converters.imports.spec_draft import plain_name
from rlrun.specs.sections.rollout import USUAL_PROMPT_TOKENS

_BATCH = 128
"""prime-rl's batch size without batch_size and token_batch_size."""
_SCHEDULES = {"constant": "constant", "linear": "wsd", "cosine": "cosine"}
_OPTIMIZERS = ("adamw", "sgd", "muon")
_WEIGHT_SYNC = {"nccl": "broadcast", "filesystem": "disk"}
_PRECISIONS = {"fp8": "float8", "mxfp8": "mxfp8"}
_LOSS_BOUNDS = ("trainer.loss.dppo_mask_low", "trainer.loss.dppo_mask_high")
_CLIPPED = {
    "max_rl": {},
    "rae": {"decay": "orchestrator.algo.decay"},
    "hierarchical_grpo": {"episode_roles": "orchestrator.algo.episode_agents"},
}
"""Algorithms with a clipped loss in rlrun, and their keys by prime-rl's settings."""
_PHASES = ("warmup_steps", "decay_steps", "min_lr")
_GROUP = "orchestrator.group_size"


def chosen(draft: ImportDraft, *names: str) -> tuple[Any, tuple[str, ...]]:
    """Returns the value of the first setting that is given, and the settings with this value.

    A setting of trainer or orchestrator comes before the shared one, which has the default.
    """
    given = [name for name in names if draft.settings.get(name) and draft.value(name) is not None]
    if not given:
        return draft.value(names[-1]), names[-1:]
    value = draft.value(given[0])
    same = tuple(name for name in given if draft.value(name) == value)
    draft.drop(f"no effect: {given[0]} takes precedence", *(name for name in given if name not in same))
    return value, same


def run_name(draft: ImportDraft) -> None:
    """Sets the name of the run."""
    written, names = chosen(draft, "run.name", "monitors.wandb.name", "run.dir")
    if plain := plain_name(str(written or "")):
        draft.put("name", plain, *names)
    else:
        name_after_file(draft)


def model(draft: ImportDraft) -> None:
    """Sets the policy."""
    shared = ("trainer.model.name", "orchestrator.model.name", "model.name")
    path, names = chosen(draft, *shared)
    draft.put("model.path", str(path), *names)
    draft.drop(
        "engines start from the policy; for a quantised copy, set `engine.model`", "inference.vllm.model"
    )


def steps(draft: ImportDraft) -> None:
    """Sets the number of steps."""
    names = ("trainer.max_steps", "orchestrator.max_steps", "max_steps")
    value, same = chosen(draft, *names)
    if value is None:
        draft.notes.append("max_steps: prime-rl trains until it is stopped: set trainer.steps")
        draft.set("trainer.steps", 1000, (), "prime-rl trains until it is stopped: set it")
    else:
        draft.put("trainer.steps", draft.count(same[0], 1000), *same)


def batches(draft: ImportDraft) -> None:
    """Sets P and n; prime-rl counts samples, and a step has one optimizer step."""
    group = draft.count(_GROUP)
    samples = draft.count("orchestrator.batch_size", _BATCH)
    draft.put("rollout.samples_per_prompt", group, _GROUP)
    comment = f"{samples} samples / group_size {group}"
    draft.put(
        "rollout.batch_size", max(1, samples // group), "orchestrator.batch_size", _GROUP, comment=comment
    )
    if samples % group:
        draft.notes.append(f"{samples} samples are not whole groups of {group}, which prime-rl refuses too")
    if group == 1:
        draft.notes.append(
            "orchestrator.group_size: groups of one sample have nothing to compare with: set "
            "rollout.samples_per_prompt"
        )
    draft.drop("a step counts prompts, not tokens: set rollout.batch_size", "orchestrator.token_batch_size")


def lengths(draft: ImportDraft) -> None:
    """Sets the lengths of prompts and responses, and the tokens of micro-batches."""
    longest, names = chosen(draft, "orchestrator.seq_len", "seq_len")
    if longest is None:
        names = ("orchestrator.seq_len",)
    total = draft.count(names[0], 2048)
    turn = "orchestrator.train.sampling.max_completion_tokens"
    if draft.value(turn) is not None and draft.count(turn) < total:
        response = draft.count(turn)
        prompt, comment = total - response, "minus max_completion_tokens"
        draft.put("rollout.max_response_tokens", response, turn)
    else:
        prompt = min(USUAL_PROMPT_TOKENS, (total + 1) // 2)
        response = max(total - prompt, 1)
        comment = "prime-rl limits prompt and response together: divide it as your prompts need it"
        draft.put("rollout.max_response_tokens", response, *names, turn, comment=comment)
    draft.put("rollout.max_prompt_tokens", prompt, *names, comment=comment)
    budget, names = chosen(draft, "trainer.model.seq_len", "seq_len")
    tokens = draft.count(names[0], 2048) if budget is not None else 2048
    ranks = draft.count("trainer.model.cp")
    draft.put("trainer.max_tokens_per_rank", max(tokens // ranks, 1), *names, "trainer.model.seq_len")
    draft.drop(
        "the engine's context follows from the longest prompt and response", "inference.vllm.max_model_len"
    )


def asynchrony(draft: ImportDraft) -> None:
    """Sets asynchronous rollouts: prime-rl always generates while it trains."""
    name = "orchestrator.max_off_policy_steps"
    limit = int(draft.number(name))
    if limit > 0:
        draft.set("rollout.mode", "async", (), "prime-rl generates while it trains")
        draft.put("rollout.max_staleness", limit, name)
    else:
        draft.put("rollout.mode", "sync", name)


def algorithm(draft: ImportDraft) -> None:
    """Sets the algorithm, and the model that distillation learns from."""
    name = "orchestrator.algo.type"
    kind = str(draft.value(name))
    if kind == "opd":
        _distillation(draft, name)
    else:
        _policy_gradient(draft, kind, name)
    filtered = "orchestrator.train.filter_zero_advantages"
    if draft.is_on(filtered) and kind not in ("opd", "rae"):
        comment = "prime-rl leaves these groups out of the batch, rlrun replaces them"
        draft.put("filters.*.type", "nonzero_std", filtered, comment=comment)


def _policy_gradient(draft: ImportDraft, kind: str, name: str) -> None:
    """Sets the advantages, and prime-rl's default loss where rlrun has both together."""
    if kind in _CLIPPED:
        draft.put("algorithm.type", kind, name, comment="its loss is clipped, prime-rl's is DPPO's")
        draft.drop(f"{kind} has a clipped loss", *_LOSS_BOUNDS)
        for key, setting in _CLIPPED[kind].items():
            draft.put_given(f"algorithm.{key}", draft.value(setting), setting)
        return
    by_default = draft.value("trainer.loss.type") == "default"
    draft.put("algorithm.type", "dppo" if by_default else "grpo", "trainer.loss.type", name)
    draft.set("algorithm.normalize_std", False, (), "prime-rl subtracts the group's mean only")
    if by_default:
        for key, setting in zip(("threshold", "threshold_high"), _LOSS_BOUNDS, strict=True):
            draft.put(f"algorithm.{key}", draft.number(setting), setting)
    if kind != "grpo":
        draft.drop(
            f"has no counterpart: the advantages are grpo's (available: grpo, {', '.join(_CLIPPED)}, opd)",
            name,
        )


def _distillation(draft: ImportDraft, name: str) -> None:
    """Sets on-policy distillation from a served teacher."""
    teacher = "orchestrator.algo.teacher"
    draft.put("algorithm.type", "on_policy_distillation", name)
    draft.set("engines.0.name", "teacher", (), "the teacher of distillation")
    draft.set("engines.0.type", "external", (), "prime-rl does not start it either")
    url = str(draft.value(f"{teacher}.base_url")).removesuffix("/").removesuffix("/v1")
    draft.put("engines.0.urls", [url], f"{teacher}.base_url", comment="has to be an SGLang server")
    draft.set("teacher.engine", "teacher", (), "its name in [[engines]]")
    draft.drop("the model that the teacher's server has loaded", f"{teacher}.name")


def loss(draft: ImportDraft) -> None:
    """Sets the reduction, the old log-probs, and the penalty on ratios to the engine's log-probs."""
    draft.set("trainer.reduction", "per_token", (), "prime-rl divides by the number of tokens")
    kind = draft.values["algorithm"]["type"]
    is_async, penalty = draft.values["rollout"]["mode"] == "async", "trainer.loss.kl_tau"
    if draft.value("trainer.loss.type") == "custom" or not (is_async or kind == "dppo"):
        draft.drop("no effect: the loss has no ratio to the engine's log-probs", penalty)
    elif draft.number(penalty) > 0:
        draft.put("algorithm.log_ratio_coef", draft.number(penalty), penalty)
    if is_async and kind != "dppo":
        draft.set("trainer.old_log_probs", "rollout", (), "prime-rl's ratio is to the engine's log-probs")
    draft.drop_unused("has no counterpart: the clipped loss is written", "trainer.loss.type")


def optimizer(draft: ImportDraft) -> None:
    """Sets the optimizer and its moments."""
    name, betas = "trainer.optim.type", ("trainer.optim.betas1", "trainer.optim.betas2")
    kind = str(draft.value(name))
    if kind in _OPTIMIZERS:
        draft.put_given("trainer.optimizer", kind, name)
    else:
        draft.drop(f"has no counterpart: AdamW is used (available: {', '.join(_OPTIMIZERS)})", name)
    if kind in ("sgd", "muon"):
        momentum = "trainer.optim.momentum" if kind == "sgd" else "trainer.optim.mu"
        draft.put("trainer.momentum", draft.number(momentum), momentum)
    if kind == "sgd":
        draft.drop("no effect: SGD has no such setting", *betas)
    else:
        second = 0.95 if kind == "muon" and betas[1] not in draft.settings else draft.number(betas[1])
        draft.put("trainer.betas", [draft.number(betas[0]), second], *betas)
    norm = "trainer.optim.max_norm"
    unset = norm in draft.settings and draft.value(norm) in (None, False)
    if draft.number(norm) > 0 and not unset:
        draft.put_given("trainer.max_grad_norm", draft.number(norm), norm)
    else:
        draft.put("trainer.max_grad_norm", 1e9, norm, comment="gradients are not clipped")


def schedule(draft: ImportDraft) -> None:
    """Sets the schedule: prime-rl's `linear` is constant, and falls linearly at the end."""
    table = "trainer.scheduler"
    kind = str(draft.value(f"{table}.type"))
    if kind not in _SCHEDULES:
        draft.drop(f"has no counterpart (available: {', '.join(_SCHEDULES)})", f"{table}.type")
    draft.put_given("trainer.schedule", _SCHEDULES.get(kind, "constant"), f"{table}.type")
    if _SCHEDULES.get(kind, "constant") == "constant":
        draft.drop("no effect: the learning rate is constant", *(f"{table}.{name}" for name in _PHASES))
        return
    draft.put(
        "trainer.warmup_steps", int(max(draft.number(f"{table}.warmup_steps"), 0)), f"{table}.warmup_steps"
    )
    if kind == "linear" and draft.number(f"{table}.decay_steps") >= 1:
        draft.put("trainer.decay_steps", draft.count(f"{table}.decay_steps"), f"{table}.decay_steps")
    rate, lowest = draft.number("trainer.optim.lr"), draft.number(f"{table}.min_lr")
    if 0 < lowest <= rate:
        draft.put(
            "trainer.min_lr_ratio", float(f"{lowest / rate:.6g}"), f"{table}.min_lr", comment="min_lr / lr"
        )


def memory(draft: ImportDraft) -> None:
    """Sets what saves memory; by default prime-rl recomputes activations and offloads the optimizer."""
    ac = "trainer.model.ac"
    mode = str(draft.value(f"{ac}.mode")) if draft.value(ac) is not False else "none"
    kind = mode if mode in ("full", "selective", "none") else "full"
    compiled = draft.value("trainer.model.compile") is not False
    if kind == "selective" and compiled:
        comment = "selective does not go with compiled layers"
        draft.put("trainer.activation_checkpointing", "full", f"{ac}.mode", ac, comment=comment)
    else:
        draft.put("trainer.activation_checkpointing", kind, f"{ac}.mode", ac)
    draft.put("trainer.compile", compiled, "trainer.model.compile", "trainer.model.compile.fullgraph")
    everything, moments = "trainer.model.fsdp_cpu_offload", "trainer.model.optim_cpu_offload"
    if draft.is_on(everything) and not draft.given("trainer.model.lora", "trainer.model.lora.rank"):
        draft.put("trainer.offload", "all", everything)
    elif draft.is_on(moments) or draft.is_on(everything):
        draft.put("trainer.offload", "optimizer", moments, everything)
    draft.drop('the optimizer step on the host: trainer.offload = "all"', "trainer.model.full_offload")


def precision(draft: ImportDraft) -> None:
    """Sets the precision of matrix products."""
    name = "trainer.model.quantization.type"
    if not draft.given("trainer.model.quantization", name):
        return
    kind = _PRECISIONS.get(str(draft.value(name)))
    if kind is None:
        draft.drop(f"has no counterpart (available: {', '.join(_PRECISIONS)})", name)
        return
    draft.put("trainer.precision", kind, name, "trainer.model.quantization")
    if kind == "float8":
        draft.set("trainer.float8_recipe", "blockwise", (), "as prime-rl's FP8")


def lora(draft: ImportDraft) -> None:
    """Sets the adapters."""
    table = "trainer.model.lora"
    names = [name for name in draft.settings if name == table or name.startswith(f"{table}.")]
    if not names or draft.value(table) is False:
        return
    draft.put("trainer.lora.rank", draft.count(f"{table}.rank"), f"{table}.rank", table)
    draft.put("trainer.lora.alpha", draft.number(f"{table}.alpha"), f"{table}.alpha")
    targets: Any = draft.value(f"{table}.target_modules")
    if draft.given(f"{table}.target_modules") and isinstance(targets, list) and targets:
        plain = [str(target) for target in targets]
        draft.put("trainer.lora.targets", plain, f"{table}.target_modules")
    draft.drop("rlrun applies no dropout", f"{table}.dropout")


def deployment(draft: ImportDraft) -> None:
    """Sets the devices of trainer and engines, which prime-rl always separates."""
    table = "deployment"
    _engine_size(draft)
    per_node = draft.count(f"{table}.gpus_per_node")
    draft.put("cluster.placement", "disaggregated", f"{table}.type", table)
    if draft.value(f"{table}.type") == "multi_node":
        trainers = draft.count(f"{table}.num_train_nodes")
        engines = draft.count(f"{table}.num_infer_nodes") * draft.count(f"{table}.num_infer_replicas")
        nodes = (f"{table}.num_train_nodes", f"{table}.num_infer_nodes", f"{table}.num_infer_replicas")
        draft.put("cluster.nodes", trainers + engines, *nodes)
        draft.put("cluster.gpus_per_node", per_node, f"{table}.gpus_per_node")
        draft.join_cluster()
        _layout(draft, trainers * per_node, f"{table}.num_train_nodes")
        draft.drop("no effect with multi_node", f"{table}.num_train_gpus", f"{table}.num_infer_gpus")
    else:
        trainers, engines = (draft.count(f"{table}.num_{part}_gpus") for part in ("train", "infer"))
        names = (f"{table}.num_train_gpus", f"{table}.num_infer_gpus")
        draft.put("cluster.gpus_per_node", trainers + engines, *names, comment="trainer and engines")
        _layout(draft, trainers, f"{table}.num_train_gpus")
        tensor, count = "inference.vllm.tensor_parallel_size", "inference.vllm.data_parallel_size"
        draft.put(
            "engine.count",
            max(1, engines // draft.count(tensor)),
            names[1],
            count,
        )
        draft.drop("the GPUs of trainer and engines together", f"{table}.gpus_per_node")


def _engine_size(draft: ImportDraft) -> None:
    """Sets the GPUs of an engine."""
    name = "inference.vllm.tensor_parallel_size"
    if draft.count(name) > 1:
        draft.put("engine.tensor", draft.count(name), name)


def _layout(draft: ImportDraft, gpus: int, name: str) -> None:
    """Sets the ranks that shard parameters, replicas and expert parallelism."""
    replicas, context = draft.count("trainer.model.dp_replicate"), draft.count("trainer.model.cp")
    group = "deployment.nodes_per_fsdp_group"
    if replicas > 1:
        draft.put("trainer.parallel.replicate", replicas, "trainer.model.dp_replicate")
    shards = max(1, gpus // (replicas * context))
    comment = f"{gpus} GPUs / {replicas * context}" if replicas * context > 1 else ""
    draft.put("trainer.parallel.fsdp", shards, name, comment=comment)
    draft.drop("`trainer.parallel.replicate` is the number of sharded groups", group)
    if draft.given("trainer.model.ep") and draft.value("trainer.model.ep") != "auto":
        experts, backend = draft.count("trainer.model.ep"), "trainer.model.ep_comm_backend"
        draft.put("trainer.parallel.expert", experts, "trainer.model.ep")
        if experts > 1 and draft.value(backend) == "deepep":
            draft.put("trainer.parallel.token_dispatcher", "deepep", backend)
    draft.drop_unused("choose trainer.parallel.expert", "trainer.model.ep")


def weights(draft: ImportDraft) -> None:
    """Sets how weights reach the engines, if the file says it."""
    names = ("trainer.weight_broadcast.type", "orchestrator.weight_broadcast.type", "weight_broadcast.type")
    if not draft.given(*names):
        return
    kind, same = chosen(draft, *names)
    if str(kind) in _WEIGHT_SYNC:
        draft.set("engine.type", "sglang", (), "in place of vLLM")
        draft.put("engine.weight_sync", _WEIGHT_SYNC[str(kind)], *same)
    else:
        draft.drop("has no counterpart: rlrun chooses by the layout (engine.weight_sync)", *same)
