"""Translates slime's flags about the number of steps, their size, and the optimizer."""

from rlrun.converters.slime.draft import Draft, Flag
from rlrun.specs.sections.optimizer import OptimizerSpec

_FROM_MEGATRON = {"embedding": "model.embed_tokens.*", "output_layer": "lm_head.*"}
_SCHEDULES = ("linear", "cosine", "WSD")
_WSD_CURVES = {"linear": "linear", "cosine": "cosine", "exponential": "exponential", "minus_sqrt": "sqrt"}

_LEARNING_RATE = 1e-6
"""slime's default of --lr, which is that of the critic too."""
_MOMENTUM = 0.9
"""Megatron's default of --sgd-momentum and of --muon-momentum."""
_MEGATRON_DECAY = 0.01
"""Megatron's default of --weight-decay."""
_MTP_WEIGHT = 0.2
"""slime's default of --mtp-loss-scaling-factor."""
_WITHOUT_MTP = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
)


def steps(draft: Draft) -> None:
    """Sets the number of steps or epochs; --num-rollout takes precedence over --num-epoch."""
    rollouts, epochs = (next(iter(draft.given(name)), None) for name in ("--num-rollout", "--num-epoch"))
    if rollouts:
        number = draft.whole("--num-rollout", 1)
        if number > 0:
            updates = draft.updates if draft.algorithm == "sft" else 1
            draft.set("trainer.steps", number * updates, (rollouts.name,))
        elif draft.algorithm == "sft":
            draft.note(rollouts, "slime trains nothing: set trainer.steps")
        else:
            _only_evaluate(draft, rollouts)
        if epochs:
            draft.note(epochs, "no effect: --num-rollout takes precedence")
    elif epochs:
        draft.set("trainer.epochs", draft.whole("--num-epoch", 1), (epochs.name,))
        for flag in draft.given("--save-interval", "--eval-interval"):
            draft.note(flag, "with --num-epoch, slime also does so at the end of each epoch; rlrun does not")
    else:
        draft.notes.append("neither --num-rollout nor --num-epoch: add trainer.steps or trainer.epochs")


def _only_evaluate(draft: Draft, flag: Flag) -> None:
    """Sets the job that is nearest to an evaluation alone: it evaluates, generates one step and ends."""
    draft.set("trainer.steps", 1, (flag.name,), "a job has at least one step")
    draft.set("debug.mode", "rollout", (flag.name,), "no trainer: slime only evaluates")
    draft.note(flag, "slime only evaluates; this job evaluates, and then also generates one step of samples")


def batches(draft: Draft) -> None:
    """Sets the batch size of demonstrations: slime's rollout batch, with one sample per prompt."""
    size = draft.whole("--rollout-batch-size", 0) // max(1, draft.whole("--num-steps-per-rollout", 1))
    if draft.algorithm == "sft" and "--global-batch-size" not in draft.flags and size:
        draft.set("trainer.global_batch_size", size, ("--rollout-batch-size",))


def optimizer_settings(draft: Draft) -> None:
    """Sets the decay rates of the optimizer's moments, and Adam's epsilon; each optimizer has its own."""
    optimizer = draft.values.get("trainer", {}).get("optimizer", "adamw")
    adam = draft.given("--adam-beta1", "--adam-beta2", "--adam-eps")
    if optimizer == "sgd":
        for flag in adam:
            draft.note(flag, "no effect: --optimizer sgd has no such setting")
        if draft.number("--weight-decay", _MEGATRON_DECAY):
            draft.notes.append(
                "trainer.weight_decay: Megatron's sgd adds the decay to gradients, and so to the momentum; "
                "rlrun decays weights directly, as with AdamW"
            )
    else:
        _moments(draft)
    if optimizer == "muon":
        draft.notes.append(
            "trainer.optimizer: Megatron's muon scales updates by √max(rows, columns), and rlrun's by 0.2 of "
            "that, with Nesterov's momentum, so that learning rates of AdamW fit: choose trainer.lr"
        )
    for flag in draft.given("--reset-optimizer-states") if not is_stateless(draft) else ():
        for section in ("trainer", *(["critic"] if draft.algorithm == "ppo" else [])):
            draft.set(f"{section}.reset_optimizer", "rollout", (flag.name,))
    for name in ("--sgd-momentum", "--muon-momentum"):
        if name == f"--{optimizer}-momentum":
            comment = "" if name in draft.flags else f"slime's default without {name}"
            draft.set("trainer.momentum", draft.number(name, _MOMENTUM), (name,), comment)
        else:
            for flag in draft.given(name):
                draft.note(flag, f"no effect without --optimizer {name[2:].partition('-')[0]}")


def _moments(draft: Draft) -> None:
    """Sets the decay rates of Adam's moments and its epsilon; without state it has only the latter."""
    given = draft.given("--adam-beta1", "--adam-beta2")
    if is_stateless(draft):
        draft.set("trainer.optimizer", "adamw_stateless", ("--use-stateless-adam",))
        for flag in (*given, *draft.given("--reset-optimizer-states")):
            draft.note(flag, "no effect: --use-stateless-adam has no moments")
    else:
        values = [draft.number("--adam-beta1", 0.9), draft.number("--adam-beta2", 0.999)]
        comment = "" if given else "slime's default without --adam-beta2"
        draft.set("trainer.betas", values, tuple(flag.name for flag in given), comment)
    for flag in draft.given("--adam-eps"):
        draft.set("trainer.eps", draft.number(flag.name, 1e-8), (flag.name,))


def is_stateless(draft: Draft) -> bool:
    """Returns whether the script's Adam has no moments."""
    return "--use-stateless-adam" in draft.flags and draft.text("--optimizer") in (None, "adam")


def schedule(draft: Draft) -> None:
    """Sets the schedule of the learning rate; slime's default decays linearly."""
    style = draft.text("--lr-decay-style")
    kinds = {"constant": "constant", "linear": "linear", "cosine": "cosine", "WSD": "wsd", None: "linear"}
    if style in kinds:
        comment = "" if style else "slime's default without --lr-decay-style"
        draft.set("trainer.schedule", kinds[style], ("--lr-decay-style",), comment)
    else:
        known = ", ".join(name for name in kinds if name)
        draft.note(draft.flags["--lr-decay-style"], f'"{style}" has no equivalent (available: {known})')
    if style == "WSD":
        _wsd(draft)
    else:
        for flag in draft.given("--lr-wsd-decay-iters", "--lr-wsd-decay-style"):
            draft.note(flag, "no effect without --lr-decay-style WSD")
    for flag in draft.given("--lr-decay-iters"):
        if style is not None and style not in _SCHEDULES:
            draft.note(flag, "no effect: the schedule is constant")
        else:
            draft.set("trainer.schedule_steps", draft.whole(flag.name, 1), (flag.name,))
    for flag in draft.given("--min-lr"):
        if style is not None and style not in _SCHEDULES:
            draft.note(flag, "no effect: the schedule is constant")
            continue
        peak = draft.number("--lr", _LEARNING_RATE)
        share = draft.number("--min-lr", 0) / peak if peak else 0.0
        draft.set("trainer.min_lr_ratio", float(f"{share:.6g}"), (flag.name,), "--min-lr / --lr")


def _wsd(draft: Draft) -> None:
    """Sets how long the schedule WSD decays, and on which curve; Megatron's default is exponential."""
    for flag in draft.given("--lr-wsd-decay-iters"):
        draft.set("trainer.decay_steps", draft.whole(flag.name, 1), (flag.name,))
    style = draft.text("--lr-wsd-decay-style")
    if style is None:
        draft.set("trainer.decay_curve", "exponential", (), "Megatron's default without --lr-wsd-decay-style")
    elif style in _WSD_CURVES:
        draft.set("trainer.decay_curve", _WSD_CURVES[style], ("--lr-wsd-decay-style",))
    else:
        known = ", ".join(_WSD_CURVES)
        draft.note(draft.flags["--lr-wsd-decay-style"], f'"{style}" has no equivalent (available: {known})')


def critic(draft: Draft) -> None:
    """Gives the critic the optimizer of the policy, as in slime. The policy's settings are complete here."""
    if draft.algorithm != "ppo":
        return
    policy = {"lr": _LEARNING_RATE, **draft.values.get("trainer", {})}
    given = {"warmup_steps", "warmup_ratio"} if draft.has("critic.warmup_steps") else set()
    for name in OptimizerSpec.model_fields:
        if name in policy and name not in given and not draft.has(f"critic.{name}"):
            draft.set(f"critic.{name}", policy[name], (), "the policy's, as in slime")


def warmup_share(draft: Draft) -> None:
    """Sets the warm-up, given as a fraction of the schedule's optimizer steps; it replaces a number of steps.

    Without --lr-decay-iters, the schedule is as long as the job. The steps of epochs follow from the data,
    which rlrun counts.
    """
    total = draft.whole("--lr-decay-iters", 0) or draft.whole("--num-rollout", 0) * draft.updates
    fractions = draft.given("--lr-warmup-fraction", "--warmup-ratio")
    for flag in fractions:
        share = draft.number(flag.name, 0.0)
        if total > 0:
            draft.set("trainer.warmup_steps", round(share * total), (flag.name,), f"{flag} of {total} steps")
        else:
            draft.set("trainer.warmup_ratio", share, (flag.name,))
    for flag in draft.given("--lr-warmup-iters"):
        if fractions:
            draft.note(flag, "no effect: --lr-warmup-fraction takes precedence")
        else:
            draft.set("trainer.warmup_steps", draft.whole(flag.name, 0), (flag.name,))
    for flag in draft.given("--lr-warmup-init"):
        if draft.has("trainer.warmup_steps") or draft.has("trainer.warmup_ratio"):
            peak = draft.number("--lr", _LEARNING_RATE)
            share = draft.number(flag.name, 0.0) / peak if peak else 0.0
            comment = "--lr-warmup-init / --lr"
            draft.set("trainer.warmup_start_ratio", float(f"{share:.6g}"), (flag.name,), comment)
        else:
            draft.note(flag, "no effect without a warm-up")


def micro_batches(draft: Draft) -> None:
    """Sets the size of micro-batches: in tokens with --use-dynamic-batch-size, otherwise in samples."""
    budgets = draft.given("--max-tokens-per-gpu", "--fsdp-max-tokens-per-gpu")
    replays = "--use-routing-replay" in draft.flags and "--use-rollout-routing-replay" not in draft.flags
    for flag in draft.given("--log-probs-max-tokens-per-gpu"):
        if "--use-dynamic-batch-size" not in draft.flags:
            draft.note(flag, "no effect without --use-dynamic-batch-size")
        elif replays and draft.updates > 1:
            draft.note(flag, "left out: with --use-routing-replay, passes have the micro-batches of training")
        else:
            key = "trainer.max_logprob_tokens_per_rank"
            draft.set(key, draft.count(flag.name, 1), (flag.name,))
    if "--use-dynamic-batch-size" in draft.flags:
        for flag in budgets:
            names = (flag.name, "--use-dynamic-batch-size")
            draft.set("trainer.max_tokens_per_rank", draft.whole(flag.name, 8192), names)
        if not budgets:
            draft.note(
                draft.flags["--use-dynamic-batch-size"], "trainer.max_tokens_per_rank limits the tokens"
            )
        for flag in draft.given("--micro-batch-size"):
            draft.note(flag, "micro-batches are packed to `trainer.max_tokens_per_rank`")
        return
    for flag in budgets:
        draft.note(flag, "no effect without --use-dynamic-batch-size")
    flags = tuple(flag.name for flag in draft.given("--micro-batch-size"))
    comment = "" if flags else "slime's default without --use-dynamic-batch-size"
    draft.set("trainer.micro_batch_size", draft.whole("--micro-batch-size", 1), flags, comment)


def logits_chunk(draft: Draft) -> None:
    """Sets the number of tokens whose logits are computed at a time."""
    for flag in draft.given("--log-probs-chunk-size"):
        size = draft.whole(flag.name, -1)
        if size > 0:
            draft.set("trainer.logits_chunk", size, (flag.name,))
        else:
            draft.note(flag, "logits are always computed in chunks: trainer.logits_chunk")


def freeze(draft: Draft) -> None:
    """Sets the frozen parameters, translating Megatron's names where the Hugging Face names are known."""
    for flag in draft.given("--freeze-params-name-list"):
        names = [_FROM_MEGATRON[name] for name in flag.values if name in _FROM_MEGATRON]
        unknown = [name for name in flag.values if name not in _FROM_MEGATRON]
        if names:
            draft.set("trainer.freeze", names, (flag.name,))
        if unknown or not names:
            draft.note(flag, f"add the Hugging Face names of {', '.join(unknown)} to trainer.freeze by hand")


def routing(draft: Draft) -> None:
    """Sets whose choice of experts is replayed in updates, and the precision of routers."""
    if "--num-experts" in draft.flags and "--moe-router-dtype" not in draft.flags:
        comment = "Megatron's default without --moe-router-dtype"
        draft.set("trainer.moe.router_dtype", "trainer", (), comment)
    trainer_flags, engine_flags = (
        draft.given("--use-routing-replay"),
        draft.given("--use-rollout-routing-replay"),
    )
    for flag in engine_flags:
        draft.set("trainer.moe.routing_replay", "engine", (flag.name,))
    for flag in trainer_flags:
        if engine_flags:
            draft.note(flag, "--use-rollout-routing-replay takes precedence")
        elif draft.updates > 1:
            draft.set("trainer.moe.routing_replay", "trainer", (flag.name,))
        else:
            draft.note(flag, "no effect: the only update of a rollout step chooses the same experts anyway")


def dropout(draft: Draft) -> None:
    """Notes that Megatron drops a tenth of attention and hidden states, unless the script says otherwise."""
    rates = {name: draft.number(name, 0.1) for name in ("--attention-dropout", "--hidden-dropout")}
    if "--num-layers" in draft.flags and (dropped := [name for name, rate in rates.items() if rate]):
        names = " and ".join(dropped)
        draft.notes.append(f"rlrun never applies dropout; Megatron does with {names}, by default 0.1")


def low_precision(draft: Draft) -> None:
    """Sets the precision of matrix products; Megatron computes in FP8 only if --fp8-format is given."""
    formats, recipes = draft.given("--fp8-format"), draft.given("--fp8-recipe")
    if not formats:
        for flag in recipes:
            draft.note(flag, "no effect without --fp8-format")
        return
    recipe = draft.text("--fp8-recipe") or "delayed"
    flags = tuple(flag.name for flag in (*formats, *recipes))
    if recipe == "mxfp8":
        draft.set("trainer.precision", "mxfp8", flags)
        return
    draft.set("trainer.precision", "float8", flags, "gradients are e4m3 too")
    if recipe == "blockwise":
        draft.set("trainer.float8_recipe", "blockwise", ("--fp8-recipe",))
    else:
        given = recipes or formats
        draft.note(given[0], f'the recipe "{recipe}" has no equivalent: float8 is scaled by rows')


def balancing(draft: Draft) -> None:
    """Sets the balancing of experts by a bias, and the rate at which the bias changes."""
    rate = draft.number("--moe-router-bias-update-rate", 1e-3)
    moving = bool(draft.given("--moe-router-enable-expert-bias")) and rate > 0
    for flag in draft.given("--moe-router-enable-expert-bias"):
        if moving:
            draft.set("trainer.moe.balancing", "bias", (flag.name,))
        else:
            draft.note(flag, "the bias of experts stays as in the checkpoint")
    for flag in draft.given("--moe-router-bias-update-rate"):
        if moving:
            draft.set("trainer.moe.balancing_rate", rate, (flag.name,))
        else:
            draft.note(flag, "no effect: the bias of experts stays as in the checkpoint")


def multi_token(draft: Draft) -> None:
    """Sets the weight of the loss of an MTP layer, in the layouts in which such layers are trained."""
    enabled, weights = draft.given("--enable-mtp-training"), draft.given("--mtp-loss-scaling-factor")
    weight = draft.number("--mtp-loss-scaling-factor", _MTP_WEIGHT)
    split = [flag for flag in draft.given(*_WITHOUT_MTP) if draft.count(flag.name, 1) > 1]
    names = tuple(flag.name for flag in (*enabled, *weights))
    if enabled and not split:
        comment = "" if weights else "slime's default without --mtp-loss-scaling-factor"
        draft.set("trainer.mtp_loss", weight, names, comment)
    for flag in (*enabled, *weights):
        if not enabled:
            draft.note(flag, "no effect without --enable-mtp-training")
        elif split:
            draft.note(flag, f"MTP layers are not trained with {split[0].name}: set trainer.mtp_loss without")
