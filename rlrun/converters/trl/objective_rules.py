"""Translates TRL's settings about the loss: its type, clipping, KL and the correction for the engine."""

import math
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.trl.batch_rules import optimizer_steps

_REDUCTIONS = {
    "grpo": "per_sample_mean",
    "sapo": "per_sample_mean",
    "luspo": "per_sample_mean",
    "dr_grpo": "dr_grpo",
    "dapo": "per_token",
    "bnpo": "per_token",
    "cispo": "per_token",
    "vespo": "per_token",
}
_ALGORITHMS = {"dr_grpo": "dr_grpo", "cispo": "cispo", "sapo": "sapo", "vespo": "vespo", "luspo": "luspo"}
_OWN_KEYS = {
    "sapo": {"tau": "sapo_temperature_pos", "tau_negative": "sapo_temperature_neg"},
    "vespo": {
        "k": "vespo_k_pos",
        "decay": "vespo_lambda_pos",
        "k_negative": "vespo_k_neg",
        "decay_negative": "vespo_lambda_neg",
    },
}
"""Keys of the algorithms without bounds, and TRL's settings of them."""
_ENTROPY = {
    "target": "entropy_target",
    "step": "entropy_coef_delta",
    "low": "entropy_coef_min",
    "high": "entropy_coef_max",
}
_STD_EPSILON = 1e-4
"""What TRL adds to the standard deviation. TRL has no setting for it (trl/trainer/grpo_trainer.py)."""
_UNBOUNDED = 1e6
"""Stands for no upper bound of a correction."""
_CORRECTION = (
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_cap",
)


def loss(draft: ImportDraft) -> None:
    """Sets the algorithm and how token losses are reduced; TRL's default is DAPO's reduction."""
    kind = str(draft.value("loss_type"))
    algorithm = _ALGORITHMS.get(kind, "grpo")
    if draft.value("importance_sampling_level") == "sequence":
        if algorithm in ("cispo", "sapo"):
            draft.drop(f"{algorithm} has ratios of tokens only", "importance_sampling_level")
        elif algorithm not in ("vespo", "luspo"):
            algorithm = "gspo"
    elif algorithm == "luspo":
        draft.drop("luspo has ratios of whole samples only", "importance_sampling_level")
    draft.put("algorithm.type", algorithm, "loss_type", "importance_sampling_level")
    draft.put("trainer.reduction", _REDUCTIONS.get(kind, "per_token"), "loss_type")
    if kind not in _REDUCTIONS:
        draft.drop("this loss has no counterpart: GRPO's clipped loss is written in its place", "loss_type")
    elif kind == "bnpo":
        draft.drop("normalised over the optimizer step, not over each micro-batch", "loss_type")
    _scale(draft, algorithm)


def _scale(draft: ImportDraft, algorithm: str) -> None:
    """Sets whether advantages are divided by the group's standard deviation, and by how much more."""
    value = draft.value("scale_rewards")
    divided = value not in (False, "none")
    if draft.given("scale_rewards") or algorithm == "dr_grpo":
        draft.put("algorithm.normalize_std", divided, "scale_rewards")
    if divided:
        draft.put("algorithm.std_epsilon", _STD_EPSILON, "scale_rewards", comment="what TRL adds to it")
    if value == "batch":
        draft.drop("rlrun divides by the standard deviation of each group, not of the batch", "scale_rewards")


def clipping(draft: ImportDraft) -> None:
    """Sets the bounds of the ratio. CISPO's weight has only an upper bound, which TRL gives itself; SAPO and
    VESPO have smooth weights instead.
    """
    kind = draft.values["algorithm"]["type"]
    for owner, keys in _OWN_KEYS.items():
        if owner != kind:
            draft.drop(f"no effect: only {owner} has it", *keys.values())
    if kind in _OWN_KEYS:
        for key, name in _OWN_KEYS[kind].items():
            draft.put(f"algorithm.{key}", draft.number(name), name)
        draft.drop(f"{kind} has no bounds", "epsilon", "epsilon_high", "delta")
        return
    low = draft.number("epsilon")
    high = draft.number("epsilon_high", low)
    if kind == "cispo":
        if high > 1:
            comment = "TRL bounds the weight by epsilon_high itself"
            draft.put("algorithm.clip_high", high - 1, "epsilon_high", comment=comment)
        else:
            draft.notes.append(
                f"algorithm.clip_high: TRL bounds CISPO's weight by {high:g}, which rlrun cannot: its bound "
                "is 1 + clip_high"
            )
            draft.drop("rlrun's bound of CISPO's weight is above 1", "epsilon_high")
        draft.drop("CISPO's weight has no lower bound", "epsilon")
        draft.drop("CISPO has no such bound", "delta")
        return
    draft.put("algorithm.clip", low, "epsilon")
    if draft.value("epsilon_high") is not None:
        draft.put("algorithm.clip_high", high, "epsilon_high")
    if draft.value("delta") is not None:
        bound = draft.number("delta")
        if bound > 1:
            draft.put("algorithm.dual_clip", bound, "delta")
        else:
            draft.drop("the bound has to be above 1", "delta")


def entropy(draft: ImportDraft) -> None:
    """Sets the target that the weight of the entropy bonus follows."""
    switch = "use_adaptive_entropy"
    if not draft.is_on(switch):
        draft.drop("no effect: the weight of the entropy bonus is fixed", switch, *_ENTROPY.values())
        return
    for key, name in _ENTROPY.items():
        draft.put(f"algorithm.adaptive_entropy.{key}", draft.number(name), name, switch)
    if optimizer_steps(draft) > 1:
        draft.drop("rlrun changes the weight once per step, not in each optimizer step", switch)


def kl(draft: ImportDraft) -> None:
    """Sets the KL term. TRL loads no reference with beta = 0, its default."""
    coef = draft.number("beta")
    if coef <= 0:
        draft.drop("no KL term, which is rlrun's default", "beta")
        draft.drop("no effect without beta", "use_bias_correction_kl")
        return
    draft.put("algorithm.kl.in_loss.type", "k3", "beta", comment="TRL's estimator")
    draft.put("algorithm.kl.in_loss.coef", coef, "beta")
    if draft.is_on("use_bias_correction_kl"):
        draft.put("algorithm.kl.in_loss.unbiased", True, "use_bias_correction_kl")


def reference(draft: ImportDraft) -> None:
    """Sets the interval at which the policy replaces the reference."""
    if draft.is_on("sync_ref_model") and draft.number("beta") > 0:
        interval = math.ceil(draft.count("ref_model_sync_steps") / optimizer_steps(draft))
        names = ("sync_ref_model", "ref_model_sync_steps")
        draft.put("reference.update_interval", interval, *names, comment="replaced; TRL mixes it")


def correction(draft: ImportDraft) -> None:
    """Sets the importance correction between engine and trainer, which TRL applies with vLLM only."""
    if not (draft.is_on("use_vllm") and draft.is_on(_CORRECTION[0])):
        draft.drop("off: TRL applies it with use_vllm only", *_CORRECTION)
        return
    if draft.value("loss_type") == "vespo":
        draft.drop("no effect: the ratio of vespo is to the engine's log-probs", *_CORRECTION)
        return
    level, _, bounding = str(draft.value(_CORRECTION[1])).partition("_")
    if level not in ("token", "sequence") or bounding not in ("mask", "truncate"):
        draft.drop("has no counterpart: the default, sequence_mask, is written", _CORRECTION[1])
        level, bounding = "sequence", "mask"
    table = "algorithm.correction"
    draft.put(f"{table}.type", "mis", *_CORRECTION[:2])
    draft.put(f"{table}.level", level, _CORRECTION[1])
    for name, value in _bounds(draft, bounding).items():
        draft.put(f"{table}.{name}", value, *(_CORRECTION[2:] if name != "mode" else _CORRECTION[1:2]))


def _bounds(draft: ImportDraft, bounding: str) -> dict[str, Any]:
    """Returns the mode and the bounds of the correction's weight."""
    cap = "vllm_importance_sampling_cap"
    highest = _CORRECTION[2] if draft.value(cap) is None else cap
    high = _UNBOUNDED if draft.value(highest) is None else draft.number(highest)
    low = None if draft.value(_CORRECTION[3]) is None else draft.number(_CORRECTION[3])
    if bounding == "mask":
        return {"mode": "mask", "high": high} | ({} if low is None else {"low": low})
    return {"mode": "truncate", "high": high} if low is None else {"mode": "clip", "low": low, "high": high}
