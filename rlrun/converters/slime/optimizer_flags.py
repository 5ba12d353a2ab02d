"""Flags of slime about steps: how many, of what size, by which optimizer."""

from rlrun.converters.slime.draft import Draft

_FROM_MEGATRON = {"embedding": "model.embed_tokens.*", "output_layer": "lm_head.*"}
_SCHEDULES = ("linear", "cosine", "WSD")


def steps(draft: Draft) -> None:
    """--num-rollout outranks --num-epoch."""
    rollouts, epochs = (next(iter(draft.given(name)), None) for name in ("--num-rollout", "--num-epoch"))
    if rollouts:
        updates = draft.updates if draft.algorithm == "sft" else 1
        draft.set("trainer.steps", draft.whole("--num-rollout", 1) * updates, (rollouts.name,))
        if epochs:
            draft.note(epochs, "--num-rollout is given too, and counts")
    elif epochs:
        draft.set("trainer.epochs", draft.whole("--num-epoch", 1), (epochs.name,))
    else:
        draft.notes.append("neither --num-rollout nor --num-epoch: add trainer.steps or trainer.epochs")


def batches(draft: Draft) -> None:
    """Demonstrations come in batches of slime's rollout batch, one sample of a prompt."""
    size = draft.whole("--rollout-batch-size", 0) // max(1, draft.whole("--num-steps-per-rollout", 1))
    if draft.algorithm == "sft" and "--global-batch-size" not in draft.flags and size:
        draft.set("trainer.global_batch_size", size, ("--rollout-batch-size",))


def betas(draft: Draft) -> None:
    """Adam's two decays are one array; slime's second one is 0.999 unless it is given."""
    flags = tuple(flag.name for flag in draft.given("--adam-beta1", "--adam-beta2"))
    values = [draft.number("--adam-beta1", 0.9), draft.number("--adam-beta2", 0.999)]
    draft.set("trainer.betas", values, flags, "" if flags else "slime's default without --adam-beta2")


def schedule(draft: Draft) -> None:
    """The learning rate over time; without a word of it slime's falls linearly."""
    style = draft.text("--lr-decay-style")
    kinds = {"constant": "constant", "linear": "linear", "cosine": "cosine", "WSD": "wsd", None: "linear"}
    if style in kinds:
        comment = "" if style else "slime's default without --lr-decay-style"
        draft.set("trainer.schedule", kinds[style], ("--lr-decay-style",), comment)
    else:
        known = ", ".join(name for name in kinds if name)
        draft.note(draft.flags["--lr-decay-style"], f'"{style}" has no equal (there are: {known})')
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
    """slime's critic learns at the policy's rate unless a file of settings says otherwise."""
    if draft.algorithm == "ppo" and not draft.has("critic.lr"):
        draft.set("critic.lr", draft.number("--lr", 1e-6), (), "the policy's, as in slime")


def warmup_share(draft: Draft) -> None:
    """A share of the job's optimizer steps, in steps."""
    for flag in draft.given("--lr-warmup-fraction", "--warmup-ratio"):
        total = draft.whole("--num-rollout", 0) * draft.updates if "--num-rollout" in draft.flags else None
        if total is None:
            draft.note(flag, "the number of optimizer steps is not known here: set trainer.warmup_steps")
        else:
            share = draft.number(flag.name, 0.0)
            draft.set("trainer.warmup_steps", round(share * total), (flag.name,), f"{flag} of {total} steps")


def micro_batches(draft: Draft) -> None:
    """A budget of tokens with --use-dynamic-batch-size, else a number of samples."""
    budgets = draft.given("--max-tokens-per-gpu", "--fsdp-max-tokens-per-gpu")
    if "--use-dynamic-batch-size" in draft.flags:
        for flag in budgets:
            names = (flag.name, "--use-dynamic-batch-size")
            draft.set("trainer.max_tokens_per_rank", draft.whole(flag.name, 8192), names)
        if not budgets:
            draft.note(draft.flags["--use-dynamic-batch-size"], "the budget is trainer.max_tokens_per_rank")
        for flag in draft.given("--micro-batch-size"):
            draft.note(flag, "micro-batches are packed to `trainer.max_tokens_per_rank`")
        return
    for flag in budgets:
        draft.note(flag, "no effect without --use-dynamic-batch-size")
    flags = tuple(flag.name for flag in draft.given("--micro-batch-size"))
    comment = "" if flags else "slime's default without --use-dynamic-batch-size"
    draft.set("trainer.micro_batch_size", draft.whole("--micro-batch-size", 1), flags, comment)


def logits_chunk(draft: Draft) -> None:
    """Tokens whose logits exist at a time."""
    for flag in draft.given("--log-probs-chunk-size"):
        size = draft.whole(flag.name, -1)
        if size > 0:
            draft.set("trainer.logits_chunk", size, (flag.name,))
        else:
            draft.note(flag, "logits always come in chunks: trainer.logits_chunk")


def freeze(draft: Draft) -> None:
    """Names of Megatron's parameters, where their Hugging Face names are known."""
    for flag in draft.given("--freeze-params-name-list"):
        names = [_FROM_MEGATRON[name] for name in flag.values if name in _FROM_MEGATRON]
        others = [name for name in flag.values if name not in _FROM_MEGATRON]
        if names:
            draft.set("trainer.freeze", names, (flag.name,))
        if others or not names:
            draft.note(
                flag, f"Megatron's names: write Hugging Face's into trainer.freeze for {', '.join(others)}"
            )


def routing(draft: Draft) -> None:
    """Which choice of experts updates take over."""
    own, engine = draft.given("--use-routing-replay"), draft.given("--use-rollout-routing-replay")
    for flag in engine:
        draft.set("trainer.moe.routing_replay", "engine", (flag.name,))
    for flag in own:
        if engine:
            draft.note(flag, "--use-rollout-routing-replay outranks it")
        elif draft.updates > 1:
            draft.set("trainer.moe.routing_replay", "trainer", (flag.name,))
        else:
            draft.note(flag, "no effect: the one update of a rollout step chooses as the policy does")


def balancing(draft: Draft) -> None:
    """A bias of experts, and the rate at which it moves."""
    rate = draft.number("--moe-router-bias-update-rate", 1e-3)
    moving = bool(draft.given("--moe-router-enable-expert-bias")) and rate > 0
    for flag in draft.given("--moe-router-enable-expert-bias"):
        if moving:
            draft.set("trainer.moe.balancing", "bias", (flag.name,))
        else:
            draft.note(flag, "the bias of experts is what the checkpoint has")
    for flag in draft.given("--moe-router-bias-update-rate"):
        if moving:
            draft.set("trainer.moe.balancing_rate", rate, (flag.name,))
        else:
            draft.note(flag, "no effect: the bias of experts is what the checkpoint has")
