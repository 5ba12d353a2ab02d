"""Translates slime's flags about the number of steps, their size, and the optimizer."""

from rlrun.converters.slime.draft import Draft

_FROM_MEGATRON = {"embedding": "model.embed_tokens.*", "output_layer": "lm_head.*"}
_SCHEDULES = ("linear", "cosine", "WSD")

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
        updates = draft.updates if draft.algorithm == "sft" else 1
        draft.set("trainer.steps", draft.whole("--num-rollout", 1) * updates, (rollouts.name,))
        if epochs:
            draft.note(epochs, "no effect: --num-rollout takes precedence")
    elif epochs:
        draft.set("trainer.epochs", draft.whole("--num-epoch", 1), (epochs.name,))
    else:
        draft.notes.append("neither --num-rollout nor --num-epoch: add trainer.steps or trainer.epochs")


def batches(draft: Draft) -> None:
    """Sets the batch size of demonstrations: slime's rollout batch, with one sample per prompt."""
    size = draft.whole("--rollout-batch-size", 0) // max(1, draft.whole("--num-steps-per-rollout", 1))
    if draft.algorithm == "sft" and "--global-batch-size" not in draft.flags and size:
        draft.set("trainer.global_batch_size", size, ("--rollout-batch-size",))


def betas(draft: Draft) -> None:
    """Sets Adam's two decay rates, which are one array here; slime's default for the second is 0.999."""
    flags = tuple(flag.name for flag in draft.given("--adam-beta1", "--adam-beta2"))
    values = [draft.number("--adam-beta1", 0.9), draft.number("--adam-beta2", 0.999)]
    draft.set("trainer.betas", values, flags, "" if flags else "slime's default without --adam-beta2")


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
    for flag in draft.given("--lr-wsd-decay-iters"):
        if style == "WSD":
            draft.set("trainer.decay_steps", draft.whole(flag.name, 1), (flag.name,))
        else:
            draft.note(flag, "no effect without --lr-decay-style WSD")
    for flag in draft.given("--min-lr"):
        if style is not None and style not in _SCHEDULES:
            draft.note(flag, "no effect: the schedule is constant")
            continue
        peak = draft.number("--lr", 1e-6)
        share = draft.number("--min-lr", 0) / peak if peak else 0.0
        draft.set("trainer.min_lr_ratio", float(f"{share:.6g}"), (flag.name,), "--min-lr / --lr")


def critic(draft: Draft) -> None:
    """Sets the critic's learning rate, by default the policy's as in slime."""
    if draft.algorithm == "ppo" and not draft.has("critic.lr"):
        draft.set("critic.lr", draft.number("--lr", 1e-6), (), "the policy's, as in slime")


def warmup_share(draft: Draft) -> None:
    """Sets the warm-up, given as a fraction of the job's optimizer steps, as a number of steps."""
    for flag in draft.given("--lr-warmup-fraction", "--warmup-ratio"):
        total = draft.whole("--num-rollout", 0) * draft.updates if "--num-rollout" in draft.flags else None
        if total is None:
            draft.note(flag, "the number of optimizer steps is unknown: set trainer.warmup_steps by hand")
        else:
            share = draft.number(flag.name, 0.0)
            draft.set("trainer.warmup_steps", round(share * total), (flag.name,), f"{flag} of {total} steps")


def micro_batches(draft: Draft) -> None:
    """Sets the size of micro-batches: in tokens with --use-dynamic-batch-size, otherwise in samples."""
    budgets = draft.given("--max-tokens-per-gpu", "--fsdp-max-tokens-per-gpu")
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
    """Sets whose choice of experts is replayed in updates."""
    own, engine = draft.given("--use-routing-replay"), draft.given("--use-rollout-routing-replay")
    for flag in engine:
        draft.set("trainer.moe.routing_replay", "engine", (flag.name,))
    for flag in own:
        if engine:
            draft.note(flag, "--use-rollout-routing-replay takes precedence")
        elif draft.updates > 1:
            draft.set("trainer.moe.routing_replay", "trainer", (flag.name,))
        else:
            draft.note(flag, "no effect: the only update of a rollout step chooses the same experts anyway")


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
    elif recipes:
        draft.note(recipes[0], f'"{recipe}" has no equivalent: float8 is scaled by rows')


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
