"""Translates verl's settings about the loss: algorithm, clipping, KL, correction, optimizer and critic."""

import math
from collections.abc import Sequence
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft

_ACTOR = "actor_rollout_ref.actor"
_DISTILLATION = "distillation.distillation_loss"
_TEACHER = "distillation.teacher_models.teacher_model.model_path"
_ESTIMATOR, _LOSS = "algorithm.adv_estimator", f"{_ACTOR}.policy_loss.loss_mode"
_ALGORITHMS = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "grpo_passk": "pass_at_k",
    "opo": "opo",
    "gdpo": "gdpo",
    "gpg": "gpg",
    "optimal_token_baseline": "optimal_token_baseline",
    "tir_optimal_token_baseline": "optimal_token_baseline",
    "remax": "remax",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
_LOSSES = {
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "geo_mean": "gmpo",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}
"""Algorithms by the names of verl's losses."""
_GROUP_RELATIVE = ("grpo", "dr_grpo", *_LOSSES.values())
_BOUNDS = {"dppo": ("threshold", "threshold_high")}
"""Keys for verl's lower and upper bound, where they are not `clip` and `clip_high`."""
_UNBOUNDED = ("sapo", "kl_cov", "gpg")
_WITHOUT_DUAL = {*_LOSSES.values()} - {"clip_cov"}
_OWN_KEYS = {
    "sapo": {"tau": f"{_ACTOR}.tau_pos", "tau_negative": f"{_ACTOR}.tau_neg"},
    "clip_cov": {
        "fraction": f"{_ACTOR}.policy_loss.clip_cov_ratio",
        "low": f"{_ACTOR}.policy_loss.clip_cov_lb",
        "high": f"{_ACTOR}.policy_loss.clip_cov_ub",
    },
    "kl_cov": {
        "fraction": f"{_ACTOR}.policy_loss.kl_cov_ratio",
        "penalty": f"{_ACTOR}.policy_loss.ppo_kl_coef",
    },
}
"""Keys of single algorithms, and verl's settings of them."""
_DISCOUNTED = ("ppo", "reinforce_plus_plus")
_PENALISED = (*_DISCOUNTED, "remax")
_REDUCTIONS = {
    "token-mean": "per_token",
    "seq-mean-token-mean": "per_sample_mean",
    "seq-mean-token-sum-norm": "dr_grpo",
}
_ESTIMATES = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "low_var_kl"}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd", "muon": "muon"}
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear", "wsd": "wsd"}
_REJECTION = {
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
    "token_k2": "token",
    "seq_max_k2": "outlier",
}
"""Levels by verl's names. k1 has bounds of the ratio, k2 one of half the square of its log."""
_MAX_LOG_RATIO = 20.0
"""verl's own bound on the log of a ratio."""
_IS = "algorithm.rollout_correction"


def algorithm(draft: ImportDraft) -> None:
    """Sets the algorithm, from verl's estimator of advantages and its loss."""
    estimator, loss = str(draft.value(_ESTIMATOR)), str(draft.value(_LOSS))
    if estimator not in _ALGORITHMS:
        draft.drop(f"has no counterpart: grpo is written (available: {', '.join(_ALGORITHMS)})", _ESTIMATOR)
    kind = _ALGORITHMS.get(estimator, "grpo")
    if _is_distilled_alone(draft):
        draft.put("algorithm.type", "on_policy_distillation", f"{_DISTILLATION}.use_task_rewards")
        draft.drop("no effect: only the teacher is learnt from", _ESTIMATOR, _LOSS)
    elif loss in _LOSSES and kind == "grpo":
        draft.put("algorithm.type", _LOSSES[loss], _LOSS, _ESTIMATOR)
        if loss == "dppo_kl":
            draft.put("algorithm.divergence", "kl", _LOSS)
    else:
        draft.put("algorithm.type", kind, *((_ESTIMATOR, _LOSS) if loss == kind else (_ESTIMATOR,)))
        if loss not in ("vanilla", kind):
            draft.drop(f"has no counterpart with {estimator}: the clipped loss is written", _LOSS)
    name = "algorithm.norm_adv_by_std_in_grpo"
    if _type(draft) == "pass_at_k":
        draft.put("algorithm.normalize_std", draft.is_on(name), name)
    elif _type(draft) in _GROUP_RELATIVE:
        draft.put_given("algorithm.normalize_std", draft.is_on(name), name)
    for key, owners in (("gamma", _DISCOUNTED), ("lambd", ("ppo",))):
        if draft.has(f"algorithm.{key}") and _type(draft) not in owners:
            del draft.values["algorithm"][key]
            del draft.comments[f"algorithm.{key}"]
            draft.drop(
                f"no effect with {estimator}", "algorithm.gamma" if key == "gamma" else "algorithm.lam"
            )


def _is_distilled_alone(draft: ImportDraft) -> bool:
    has_teacher = draft.is_on("distillation.enabled") and draft.value(_TEACHER) is not None
    return has_teacher and not draft.is_on(f"{_DISTILLATION}.use_task_rewards")


def distillation(draft: ImportDraft) -> None:
    """Sets the teacher, and what is learnt from it: the log-prob of the sampled token or a distribution."""
    switch = "distillation.enabled"
    mode, coef, gradient, top_k = (
        f"{_DISTILLATION}.{name}"
        for name in ("loss_mode", "distillation_loss_coef", "use_policy_gradient", "topk")
    )
    names = (switch, _TEACHER, mode, coef, gradient, top_k, f"{_DISTILLATION}.use_task_rewards")
    if not draft.is_on(switch) or draft.value(_TEACHER) is None:
        draft.drop("no distillation: distillation.enabled is off, or no teacher_model has a path", *names)
        return
    draft.put("teacher.path", draft.value(_TEACHER), _TEACHER, comment="the trainer loads it")
    if draft.number(coef) > 0:
        draft.put("algorithm.distillation.coef", draft.number(coef), coef, switch)
    kind, by_gradient = str(draft.value(mode)), draft.is_on(gradient)
    if kind == "forward_kl_topk" and not by_gradient:
        table = "algorithm.distillation.divergence"
        draft.put(f"{table}.beta", 0.0, mode, gradient, comment="the other tokens count, as one more")
        draft.put(f"{table}.top_k", draft.count(top_k), top_k)
        return
    if kind != "k1" or not by_gradient:
        why = "the distance is k1 of the sampled token, in the advantages (or forward_kl_topk, in the loss)"
        draft.drop(why, mode, gradient)
    draft.drop("no effect: only forward_kl_topk compares several tokens", top_k)


def _type(draft: ImportDraft) -> str:
    return str(draft.values["algorithm"]["type"])


def reduction(draft: ImportDraft) -> None:
    """Sets how token losses are reduced; verl's default is the mean over all tokens."""
    name, factor = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.loss_scale_factor"
    mode = str(draft.value(name))
    if mode in _REDUCTIONS:
        draft.put("trainer.reduction", _REDUCTIONS[mode], name)
    else:
        draft.drop(f"has no counterpart: rlrun's default is used (available: {', '.join(_REDUCTIONS)})", name)
    draft.drop("rlrun divides by rollout.max_response_tokens", factor)


def clipping(draft: ImportDraft) -> None:
    """Sets the bounds of the ratio; verl bounds it for negative advantages too, by 3 unless it is set."""
    low, high = (f"{_ACTOR}.clip_ratio_{side}" for side in ("low", "high"))
    both, dual = f"{_ACTOR}.clip_ratio", f"{_ACTOR}.clip_ratio_c"
    _own_keys(draft)
    if _type(draft) in _UNBOUNDED:
        draft.drop("no effect: this loss has no bounds", low, high, both, dual)
        return
    keys = _BOUNDS.get(_type(draft), ("clip", "clip_high"))
    for key, name in zip(keys, (low, high), strict=True):
        source = both if name in draft.settings and draft.value(name) is None else name
        value = draft.number(source)
        if value > 0:
            no_bound = _type(draft) == "cispo" and key == "clip" and value > 1
            comment = f"{value:g} is no lower bound, as 1" if no_bound else ""
            draft.put(f"algorithm.{key}", 1.0 if no_bound else value, source, comment=comment)
    draft.drop_unused("no effect: clip_ratio_low and clip_ratio_high take precedence", both)
    if _type(draft) in _WITHOUT_DUAL:
        draft.drop("no effect: this loss has no such bound", dual)
    elif draft.number(dual) > 1:
        draft.put("algorithm.dual_clip", draft.number(dual), dual)
    else:
        draft.drop("the bound has to be above 1", dual)


def _own_keys(draft: ImportDraft) -> None:
    """Sets what only this algorithm has, and notes what only others have."""
    for kind, keys in _OWN_KEYS.items():
        for key, name in keys.items():
            if kind == _type(draft):
                draft.put(f"algorithm.{key}", draft.number(name), name)
            else:
                draft.drop(f"no effect: only {kind} has it", name)


def kl(draft: ImportDraft) -> None:
    """Sets the KL term in the loss or in the reward."""
    names = (f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type")
    if draft.is_on(names[0]):
        table = "algorithm.kl.in_loss"
        kind = _estimator(draft, names[2])
        draft.put(f"{table}.type", kind, names[2])
        draft.put(f"{table}.coef", max(draft.number(names[1]), 0.0), *names[:2])
        if kind == "k1":
            draft.set(f"{table}.unbiased", True, (), "k1 has no gradient without it")
    else:
        draft.drop("no KL term in the loss: use_kl_loss is off", *names)
    _kl_in_reward(draft)


def _kl_in_reward(draft: ImportDraft) -> None:
    switch, kind, coef = "algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef"
    names = (switch, kind, coef, "algorithm.kl_ctrl.type")
    if not draft.is_on(switch):
        draft.drop("no KL term in the reward: use_kl_in_reward is off", *names)
    elif _type(draft) not in _PENALISED or draft.has("algorithm.kl.in_loss.coef"):
        draft.drop("rlrun's KL term of this algorithm is in the loss: algorithm.kl.in_loss", *names)
    elif draft.number(coef) > 0:
        draft.put("algorithm.kl.in_reward.type", _estimator(draft, kind), kind)
        draft.put("algorithm.kl.in_reward.coef", draft.number(coef), coef, switch)
        if draft.value("algorithm.kl_ctrl.type") != "fixed":
            draft.drop("rlrun's coefficient is fixed", "algorithm.kl_ctrl.type")


def _estimator(draft: ImportDraft, name: str) -> str:
    """Returns rlrun's estimator of the KL divergence."""
    kind = str(draft.value(name))
    if kind.removesuffix("+") not in _ESTIMATES:
        draft.drop(f"has no counterpart: low_var_kl is written (available: {', '.join(_ESTIMATES)})", name)
    elif kind.endswith("+"):
        draft.drop("rlrun has no straight-through gradient of k2", name)
    return _ESTIMATES.get(kind.removesuffix("+"), "low_var_kl")


def correction(draft: ImportDraft) -> None:
    """Sets the correction between engine and trainer; verl's default only measures."""
    level, threshold = f"{_IS}.rollout_is", f"{_IS}.rollout_is_threshold"
    _bypass(draft)
    if draft.value(level) not in ("token", "sequence"):
        why = "rlrun rejects only with weights: algorithm.correction.rejection"
        draft.drop(why, f"{_IS}.rollout_rs", f"{_IS}.rollout_rs_threshold")
        draft.drop_unused("off: rollout_is is not set", *_names(draft))
        return
    table, bounds = "algorithm.correction", _bounds(draft.value(threshold))
    if bounds is None:
        draft.drop("not a number, or two with _ between them: 2 is used", threshold)
        bounds = [2.0]
    plain = draft.value(level) == "token" and not any(
        draft.value(f"{_IS}.{name}") for name in ("rollout_is_batch_normalize", "rollout_rs")
    )
    draft.put(f"{table}.type", ("icepop" if len(bounds) == 2 else "tis") if plain else "mis", level)
    if not plain:
        draft.put(f"{table}.level", draft.value(level), level)
        draft.put(f"{table}.mode", "mask" if len(bounds) == 2 else "truncate", threshold)
    for key, bound in zip(("low", "high") if len(bounds) == 2 else ("high",), bounds, strict=True):
        draft.put(f"{table}.{key}", bound, threshold)
    if draft.is_on(f"{_IS}.rollout_is_batch_normalize"):
        draft.put(f"{table}.normalize", True, f"{_IS}.rollout_is_batch_normalize")
    _rejection(draft)


def _names(draft: ImportDraft) -> Sequence[str]:
    return [name for name in draft.settings if name.startswith(f"{_IS}.")]


def _bypass(draft: ImportDraft) -> None:
    """Sets the engine's log-probs as the old ones, which verl calls bypass."""
    name, loss = f"{_IS}.bypass_mode", f"{_IS}.loss_type"
    if draft.is_on(name) and draft.value(f"{_IS}.rollout_is") is None:
        draft.put("trainer.old_log_probs", "rollout", name)
    elif draft.is_on(name):
        draft.drop("a correction needs the trainer's own log-probs in rlrun", name)
    if draft.value(loss) != "ppo_clip":
        draft.drop("has no counterpart: the clipped loss is written", loss)


def _bounds(value: Any) -> list[float] | None:
    """Returns one or two bounds of `2.0` or `0.5_2.0`; None if they are none."""
    try:
        bounds = [float(part) for part in str(value).split("_")]
    except ValueError:
        return None
    fits = len(bounds) in (1, 2) and all(0 <= bound < 1e9 for bound in bounds) and bounds[-1] > 0
    return bounds if fits and (len(bounds) == 1 or bounds[0] < bounds[1]) else None


def _rejection(draft: ImportDraft) -> None:
    """Sets the rejection of tokens or samples by bounds of the ratio."""
    mode, threshold = f"{_IS}.rollout_rs", f"{_IS}.rollout_rs_threshold"
    if draft.value(mode) is None:
        draft.drop("no effect without rollout_rs", threshold)
        return
    kind, bounds = str(draft.value(mode)), _bounds(draft.value(threshold))
    level = _REJECTION.get(kind)
    if kind.endswith("k2") and bounds is not None:
        log_bound = min(math.sqrt(2 * bounds[0]), _MAX_LOG_RATIO)
        bounds = [math.exp(log_bound)] if len(bounds) == 1 else None
    if level is None or bounds is None or bounds[-1] <= 1:
        draft.drop(f"has no counterpart (available: {', '.join(_REJECTION)}, with bounds)", mode, threshold)
        return
    low, high = bounds if len(bounds) == 2 else (1 / bounds[0], bounds[0])
    value = {"level": level, "low": float(f"{low:.6g}"), "high": float(f"{high:.6g}")}
    for key, item in value.items():
        draft.put(f"algorithm.correction.rejection.{key}", item, mode, threshold)


def optimizer(draft: ImportDraft) -> None:
    """Sets the optimizer and the clipping of gradients."""
    name = f"{_ACTOR}.optim.optimizer"
    kind = _OPTIMIZERS.get(str(draft.value(name)).lower())
    if kind is None:
        draft.drop("has no counterpart: AdamW is used", name)
    else:
        draft.put_given("trainer.optimizer", kind, name)
    betas = draft.value(f"{_ACTOR}.optim.betas")
    if kind == "sgd":
        draft.drop("no effect: SGD has no such setting", f"{_ACTOR}.optim.betas")
    elif isinstance(betas, list) and len(betas) == 2:
        draft.put("trainer.betas", betas, f"{_ACTOR}.optim.betas")
    for norm in (f"{_ACTOR}.optim.clip_grad", f"{_ACTOR}.grad_clip"):
        if draft.given(norm) and draft.number(norm) > 0 and not draft.has("trainer.max_grad_norm"):
            draft.put("trainer.max_grad_norm", draft.number(norm), norm)


def schedule(draft: ImportDraft) -> None:
    """Sets the schedule of the learning rate, by the names of FSDP's and of Megatron's optimizer."""
    names = [f"{_ACTOR}.optim.{name}" for name in ("lr_scheduler_type", "warmup_style", "lr_decay_style")]
    for name in names:
        if draft.given(name) and (style := str(draft.value(name)).lower()) in _SCHEDULES:
            draft.put("trainer.schedule", _SCHEDULES[style], name)
    draft.drop_unused(f"has no counterpart (available: {', '.join(_SCHEDULES)})", *names)
    steps, share = f"{_ACTOR}.optim.lr_warmup_steps", f"{_ACTOR}.optim.lr_warmup_steps_ratio"
    if draft.number(steps) > 0:
        draft.put("trainer.warmup_steps", draft.count(steps), steps)
        draft.drop("no effect: lr_warmup_steps takes precedence", share)
    elif 0 < draft.number(share) < 1:
        draft.put("trainer.warmup_ratio", draft.number(share), share)
    _lowest_rate(draft)


def _lowest_rate(draft: ImportDraft) -> None:
    """Sets the learning rate at the end of a schedule that decays."""
    ratio, lowest = f"{_ACTOR}.optim.min_lr_ratio", f"{_ACTOR}.optim.min_lr"
    if draft.values["trainer"].get("schedule", "constant") == "constant":
        draft.drop("no effect: the learning rate is constant", ratio, lowest)
        return
    rate = draft.number(f"{_ACTOR}.optim.lr")
    if 0 < draft.number(ratio) <= 1:
        draft.put("trainer.min_lr_ratio", draft.number(ratio), ratio)
    elif 0 < draft.number(lowest) <= rate:
        draft.put(
            "trainer.min_lr_ratio", float(f"{draft.number(lowest) / rate:.6g}"), lowest, comment="min_lr / lr"
        )


def critic(draft: ImportDraft) -> None:
    """Sets the critic of PPO."""
    names = [name for name in draft.settings if draft.table.row(name).rule == "critic"]
    if _type(draft) != "ppo":
        draft.drop("no effect: only gae has a critic", *names)
        return
    draft.put("critic.lr", draft.number("critic.optim.lr"), "critic.optim.lr")
    draft.put("critic.weight_decay", draft.number("critic.optim.weight_decay"), "critic.optim.weight_decay")
    betas = draft.value("critic.optim.betas")
    if isinstance(betas, list) and len(betas) == 2:
        draft.put("critic.betas", betas, "critic.optim.betas")
    if draft.number("critic.optim.clip_grad") > 0:
        draft.put_given(
            "critic.max_grad_norm", draft.number("critic.optim.clip_grad"), "critic.optim.clip_grad"
        )
    if draft.number("critic.cliprange_value") > 0:
        draft.put("algorithm.value_clip", draft.number("critic.cliprange_value"), "critic.cliprange_value")
    if draft.number("trainer.critic_warmup") > 0:
        draft.put("critic.only_steps", draft.count("trainer.critic_warmup"), "trainer.critic_warmup")
