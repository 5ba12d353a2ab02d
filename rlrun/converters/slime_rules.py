"""Flags of slime that only make sense together."""

import re
from collections.abc import Callable, Mapping

from rlrun.converters.slime_draft import Draft
from rlrun.converters.slime_layout import layout
from rlrun.converters.slime_sources import data, evaluation, filters, rewards
from rlrun.converters.slime_table import flag_table


def steps(draft: Draft) -> None:
    """--num-rollout outranks --num-epoch."""
    rollouts, epochs = (next(iter(draft.given(name)), None) for name in ("--num-rollout", "--num-epoch"))
    if rollouts:
        draft.set("trainer.steps", draft.whole("--num-rollout", 1), (rollouts.name,))
        if epochs:
            draft.note(epochs, "--num-rollout is given too, and counts")
    elif epochs:
        draft.set("trainer.epochs", draft.whole("--num-epoch", 1), (epochs.name,))
    else:
        draft.notes.append("neither --num-rollout nor --num-epoch: add trainer.steps or trainer.epochs")


def algorithm(draft: Draft) -> None:
    """The estimator names the algorithm, unless the loss does."""
    for flag in draft.given("--loss-type", "--advantage-estimator"):
        row, value = flag_table()[flag.name], draft.text(flag.name) or ""
        if flag.name == "--loss-type" and value == "policy_loss":
            continue
        if value not in row.values:
            draft.note(flag, f"{value or 'nothing'} has no equal: choose algorithm.type (rlrun plugins list)")
        elif draft.values.get("algorithm", {}).get("type") == "sft":
            draft.note(flag, "demonstrations have no advantages")
        else:
            draft.set("algorithm.type", row.values[value], (flag.name,))
    if draft.algorithm == "gspo" and "--eps-clip" not in draft.flags:
        draft.notes.append(
            "gspo: slime's --eps-clip is 0.2 unless given; algorithm.clip is 0.0003, as published"
        )


def demonstrations(draft: Draft) -> None:
    """Without rollouts the batch is slime's rollout batch, one sample a prompt."""
    if draft.algorithm != "sft":
        return
    if "--global-batch-size" not in draft.flags and "--rollout-batch-size" in draft.flags:
        size = draft.whole("--rollout-batch-size", 1)
        draft.set("trainer.global_batch_size", size, ("--rollout-batch-size",))
    draft.notes.append("data.response_key: name the key of the demonstration")


def engine(draft: Draft) -> None:
    """slime generates with SGLang."""
    if draft.algorithm != "sft":
        draft.set("engine.type", "sglang", (), "slime's engine")
    if draft.algorithm == "on_policy_distillation":
        draft.notes.append("teacher.path: name the teacher's Hugging Face folder or id, under [teacher]")


def weight_bucket(draft: Draft) -> None:
    """slime counts bytes."""
    for flag in draft.given("--update-weight-buffer-size"):
        if draft.algorithm != "sft":
            draft.set("engine.weight_bucket", max(1, draft.whole(flag.name, 1) >> 20), (flag.name,))
        else:
            draft.note(flag, "demonstrations need no engines")


def kl_in_reward(draft: Draft) -> None:
    """A penalty in the reward, for the algorithms that have one there."""
    for flag in draft.given("--kl-coef"):
        row = flag_table()[flag.name]
        if not draft.number(flag.name, 0.0):
            draft.note(flag, "0 is no penalty, and no key")
        elif draft.algorithm not in row.of:
            draft.note(flag, f"{draft.algorithm} has no KL in the reward (slime computes and ignores it)")
        else:
            draft.set(row.key or "", draft.number(flag.name, 0.0), (flag.name,))
            if kind := draft.text("--kl-loss-type"):
                draft.set("algorithm.kl.in_reward.type", kind, ("--kl-loss-type",))


def reference(draft: Draft) -> None:
    """A reference that moves, where a KL term has one."""
    for flag in draft.given("--ref-update-interval"):
        if "kl" in draft.values.get("algorithm", {}):
            draft.set("reference.update_interval", draft.whole(flag.name, 1), (flag.name,))
        else:
            draft.note(flag, "no effect: there is no KL term, and so no reference")


def kl_in_loss(draft: Draft) -> None:
    """The reference's place in the loss, where --use-kl-loss asks for one."""
    flags = draft.given("--use-kl-loss", "--kl-loss-type", "--kl-loss-coef")
    if "--use-kl-loss" not in draft.flags or draft.algorithm == "sft":
        used = draft.has("algorithm.kl.in_reward.type")
        for flag in (each for each in flags if not (used and each.name == "--kl-loss-type")):
            draft.note(flag, "no effect without --use-kl-loss")
        return
    named = draft.text("--kl-loss-type")
    draft.set("algorithm.kl.in_loss.type", named or "k1", (f"--kl-loss-type{'' if named else ' (default)'}",))
    draft.set(
        "algorithm.kl.in_loss.coef", draft.number("--kl-loss-coef", 0.0), ("--use-kl-loss", "--kl-loss-coef")
    )


def correction(draft: Draft) -> None:
    """Truncated importance sampling, where --use-tis asks for it."""
    flags = draft.given("--use-tis", "--tis-clip", "--tis-clip-low")
    if "--use-tis" not in draft.flags or draft.algorithm == "sft":
        for flag in flags:
            draft.note(flag, "no effect without --use-tis")
        return
    draft.set("algorithm.correction.type", "tis", ("--use-tis",))
    for name, key in (("--tis-clip", "high"), ("--tis-clip-low", "low")):
        if name in draft.flags:
            default = {"high": 2.0, "low": 0.0}[key]
            draft.set(f"algorithm.correction.{key}", draft.number(name, default), (name,))


def betas(draft: Draft) -> None:
    """Adam's two decays are one array."""
    flags = draft.given("--adam-beta1", "--adam-beta2")
    if flags:
        values = [draft.number("--adam-beta1", 0.9), draft.number("--adam-beta2", 0.98)]
        draft.set("trainer.betas", values, tuple(flag.name for flag in flags))


def least_rate(draft: Draft) -> None:
    """Where the schedule ends, as a share of its peak."""
    for flag in draft.given("--min-lr"):
        if draft.text("--lr-decay-style") not in ("linear", "cosine"):
            draft.note(flag, "no effect: the schedule is constant")
            continue
        peak = draft.number("--lr", 1e-6)
        draft.set("trainer.min_lr_ratio", draft.number("--min-lr", 0) / peak if peak else 0.0, (flag.name,))


def warmup_share(draft: Draft) -> None:
    """A share of the job's optimizer steps, in steps."""
    for flag in draft.given("--lr-warmup-fraction", "--warmup-ratio"):
        total = _optimizer_steps(draft)
        if total is None:
            draft.note(flag, "the number of optimizer steps is not known here: set trainer.warmup_steps")
        else:
            share = draft.number(flag.name, 0.0)
            draft.set("trainer.warmup_steps", round(share * total), (flag.name,), f"{flag} of {total} steps")


def _optimizer_steps(draft: Draft) -> int | None:
    if "--num-rollout" not in draft.flags:
        return None
    return draft.whole("--num-rollout", 0) * max(_updates(draft), 1)


def _updates(draft: Draft) -> int:
    """Of one rollout step."""
    samples = draft.whole("--rollout-batch-size", 0) * draft.whole("--n-samples-per-prompt", 1)
    given = draft.whole("--num-steps-per-rollout", 0)
    return given or samples // draft.whole("--global-batch-size", samples or 1)


def micro_batches(draft: Draft) -> None:
    """A number of samples, unless micro-batches are cut by tokens."""
    for flag in draft.given("--micro-batch-size"):
        if draft.given("--use-dynamic-batch-size", "--max-tokens-per-gpu"):
            draft.note(flag, "micro-batches are packed to `trainer.max_tokens_per_rank`")
        else:
            draft.set("trainer.micro_batch_size", draft.whole(flag.name, 1), (flag.name,))


def routing(draft: Draft) -> None:
    """Several updates a rollout step, of which the later ones would choose other experts."""
    for flag in draft.given("--use-routing-replay"):
        if _updates(draft) > 1:
            draft.set("trainer.moe.routing_replay", "trainer", (flag.name,))
        else:
            draft.note(flag, "no effect: the one update of a rollout step chooses as the policy does")


def balancing(draft: Draft) -> None:
    """A bias of experts, and the rate at which it moves."""
    rate = draft.number("--moe-router-bias-update-rate", 1e-3)
    moving = bool(draft.given("--moe-router-enable-expert-bias")) and rate > 0
    if moving:
        draft.set("trainer.moe.balancing", "bias", ("--moe-router-enable-expert-bias",))
    for flag in draft.given("--moe-router-bias-update-rate"):
        if moving:
            draft.set("trainer.moe.balancing_rate", rate, (flag.name,))
        else:
            draft.note(flag, "no effect: the bias of experts is what the checkpoint has")


def trackers(draft: Draft) -> None:
    """TensorBoard, Weights & Biases, or both."""
    number = 0
    if "--use-tensorboard" in draft.flags:
        draft.set("trackers.0.type", "tensorboard", ("--use-tensorboard",))
        number = 1
    settings = draft.given("--wandb-project", "--wandb-team", "--wandb-group", "--wandb-mode")
    if "--use-wandb" not in draft.flags or draft.text("--wandb-mode") == "disabled":
        for flag in [*settings, *draft.given("--use-wandb")]:
            draft.note(flag, "no effect: W&B is off")
        return
    draft.set(f"trackers.{number}.type", "wandb", ("--use-wandb",))
    for flag in settings:
        key = (flag_table()[flag.name].key or "").rpartition(".")[2]
        draft.set(f"trackers.{number}.{key}", draft.text(flag.name) or "", (flag.name,))


def run_name(draft: Draft) -> None:
    """A name that can be a folder's."""
    for flag in draft.given("--tb-experiment-name"):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", draft.text(flag.name) or "").strip("-._")
        if name:
            draft.set("name", name, (flag.name,))


RULES: Mapping[str, Callable[[Draft], None]] = {
    "run_name": run_name,
    "steps": steps,
    "algorithm": algorithm,
    "demonstrations": demonstrations,
    "engine": engine,
    "weight_bucket": weight_bucket,
    "kl_in_reward": kl_in_reward,
    "kl_in_loss": kl_in_loss,
    "reference": reference,
    "correction": correction,
    "rewards": rewards,
    "filters": filters,
    "evaluation": evaluation,
    "layout": layout,
    "betas": betas,
    "least_rate": least_rate,
    "warmup_share": warmup_share,
    "micro_batches": micro_batches,
    "routing": routing,
    "balancing": balancing,
    "trackers": trackers,
    "data": data,
}
"""By the name that slime_flags.toml gives them; each looks at the flags it needs, and all are run."""
