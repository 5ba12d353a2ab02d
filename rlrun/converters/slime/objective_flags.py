"""Translates slime's flags about the loss: algorithm, clipping, KL, corrections, distillation."""

from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import flag_table
from rlrun.converters.slime.secrets import bare_address

_DEFAULT_CLIP = 0.2
_WITH_OTHER_CLIP = ("gspo", "cispo")
"""Algorithms whose default bounds differ from slime's."""
_DEFAULT_DELTA = 1e-4
_MIS = "mis.compute_mis_weights"
_ICEPOP = "icepop_function"
_MEGATRON_FOLDER = "_torch_dist"


def algorithm(draft: Draft) -> None:
    """Sets the algorithm, which slime's advantage estimator or loss names."""
    if draft.is_pure_distillation:
        flags = draft.given("--use-opd", "--custom-rm-path", "--custom-reward-post-process-path")
        draft.set("algorithm.type", "on_policy_distillation", tuple(flag.name for flag in flags))
        for flag in draft.given("--advantage-estimator"):
            draft.note(flag, "no effect: rewards are 0, and only the teacher determines the advantages")
        return
    for flag in draft.given("--custom-reward-post-process-path"):
        draft.note(flag, "write an algorithm plugin, which turns rewards into advantages (docs/plugins.md)")
    for flag in draft.given("--loss-type", "--advantage-estimator"):
        row, value = flag_table()[flag.name], draft.text(flag.name) or ""
        if flag.name == "--loss-type" and value == "policy_loss":
            draft.note(flag, "the default: --advantage-estimator names the algorithm")
        elif value not in row.values:
            draft.note(
                flag, f"{value or 'nothing'} has no equivalent: choose algorithm.type (rlrun plugins list)"
            )
        elif draft.values.get("algorithm", {}).get("type") == "sft":
            draft.note(flag, "demonstrations have no advantages")
        else:
            draft.set("algorithm.type", row.values[value], (flag.name,))


def clipping(draft: Draft) -> None:
    """Sets the bounds of the ratio; slime's default for the upper bound is the lower one."""
    given = tuple(flag.name for flag in draft.given("--eps-clip"))
    low = draft.number("--eps-clip", _DEFAULT_CLIP)
    if given or draft.algorithm in _WITH_OTHER_CLIP:
        draft.set("algorithm.clip", low, given, "" if given else "slime's default without --eps-clip")
    if upper := draft.given("--eps-clip-high"):
        draft.set("algorithm.clip_high", draft.number("--eps-clip-high", low), (upper[0].name,))
    elif draft.algorithm in _WITH_OTHER_CLIP:
        draft.set("algorithm.clip_high", low, (), "as clip: slime's default without --eps-clip-high")
    for flag in draft.given("--eps-clip-c"):
        if draft.algorithm == "cispo":
            draft.note(flag, "cispo has no such parameter")
        else:
            draft.set("algorithm.dual_clip", draft.number(flag.name, 3.0), (flag.name,))


def kl_in_reward(draft: Draft) -> None:
    """Sets the KL penalty in the reward, for algorithms that have one."""
    for flag in draft.given("--kl-coef"):
        row = flag_table()[flag.name]
        if not draft.number(flag.name, 0.0):
            draft.note(flag, "no effect: 0 means no penalty")
        elif draft.algorithm not in row.of:
            draft.note(flag, f"{draft.algorithm} has no KL in the reward (slime computes and ignores it)")
        else:
            draft.set(row.key or "", draft.number(flag.name, 0.0), (flag.name,))
            if kind := draft.text("--kl-loss-type"):
                draft.set("algorithm.kl.in_reward.type", kind, ("--kl-loss-type",))


def kl_in_loss(draft: Draft) -> None:
    """Sets the KL penalty in the loss, if --use-kl-loss is given."""
    flags = draft.given("--use-kl-loss", "--kl-loss-type", "--kl-loss-coef", "--use-unbiased-kl")
    if "--use-kl-loss" not in draft.flags:
        used = draft.has("algorithm.kl.in_reward.type")
        for flag in (flag for flag in flags if not (used and flag.name == "--kl-loss-type")):
            draft.note(flag, "no effect without --use-kl-loss")
        return
    named, coefficient = draft.text("--kl-loss-type"), draft.number("--kl-loss-coef", 0.0)
    if (named or "k1") == "k1" and not (coefficient and draft.given("--use-unbiased-kl")):
        for flag in flags:
            note = "left out: k1 has no effect in a loss, because its mean gradient is 0; use low_var_kl"
            draft.note(flag, note)
        return
    comment = f"--kl-loss-type{'' if named else ' (default)'}"
    draft.set("algorithm.kl.in_loss.type", named or "k1", (comment,))
    draft.set("algorithm.kl.in_loss.coef", coefficient, ("--use-kl-loss", "--kl-loss-coef"))
    for flag in draft.given("--use-unbiased-kl"):
        draft.set("algorithm.kl.in_loss.unbiased", True, (flag.name,))


def reference(draft: Draft) -> None:
    """Sets how often the reference is updated, if a KL term has a reference."""
    for flag in draft.given("--ref-update-interval"):
        if "kl" in draft.values.get("algorithm", {}):
            draft.set("reference.update_interval", draft.whole(flag.name, 1), (flag.name,))
        else:
            draft.note(flag, "no effect: without a KL term there is no reference")


def correction(draft: Draft) -> None:
    """Sets the correction of the gap between engine and trainer, if --use-tis is given."""
    custom = draft.text("--custom-tis-function-path") or ""
    if "--use-tis" not in draft.flags or _MIS not in custom:
        for flag in draft.given("--custom-config-path"):
            draft.note(flag, "write the parameters of a plugin as keys of the spec, next to its `type`")
    if "--use-tis" not in draft.flags:
        for flag in draft.given("--tis-clip", "--tis-clip-low", "--custom-tis-function-path"):
            draft.note(flag, "no effect without --use-tis")
    elif _MIS in custom:
        draft.set("algorithm.correction.type", "mis", ("--use-tis", "--custom-tis-function-path"))
        _masked_importance_sampling(draft)
    elif custom and not custom.endswith(_ICEPOP):
        note = "write an algorithm plugin, or use a published correction with `algorithm.correction`"
        draft.note(draft.flags["--custom-tis-function-path"], note)
        draft.note(draft.flags["--use-tis"], note)
    else:
        flags = tuple(flag.name for flag in draft.given("--use-tis", "--custom-tis-function-path"))
        draft.set("algorithm.correction.type", "icepop" if custom else "tis", flags)
        _bounds(draft)


def _bounds(draft: Draft) -> None:
    for name, key in (("--tis-clip", "high"), ("--tis-clip-low", "low")):
        if name in draft.flags:
            draft.set(
                f"algorithm.correction.{key}", draft.number(name, {"high": 2.0, "low": 0.0}[key]), (name,)
            )


def _masked_importance_sampling(draft: Draft) -> None:
    """Sets the parameters of slime's example `mis`, which are in the file of --custom-config-path."""
    for flag in draft.given("--tis-clip", "--tis-clip-low"):
        draft.note(flag, "no effect: the bounds are in the file of --custom-config-path")
    settings = draft.settings("--custom-config-path")
    if settings is None:
        return
    source = ("--custom-config-path",)
    rejects = bool(settings.get("use_rs"))
    upper = settings.get("tis_upper_bound", 2.0)
    lower = settings.get("tis_lower_bound") or 1.0 / upper
    level, mode = settings.get("tis_level", "token"), settings.get("tis_mode", "truncate")
    if rejects:
        level, mode = settings.get("rs_level", level), "mask"
        lower, upper = settings.get("rs_lower_bound") or lower, settings.get("rs_upper_bound") or upper
    draft.set("algorithm.correction.level", level, source)
    draft.set(
        "algorithm.correction.mode", mode, source, "use_rs: tokens outside the bounds" if rejects else ""
    )
    draft.set("algorithm.correction.high", float(upper), source)
    if mode != "truncate":
        draft.set("algorithm.correction.low", float(lower), source)
    if rejects and settings.get("rs_veto_threshold"):
        draft.set("algorithm.correction.veto", float(settings["rs_veto_threshold"]), source)
    if settings.get("tis_batch_normalize"):
        draft.note(
            draft.flags["--custom-config-path"],
            "tis_batch_normalize: rlrun does not normalise weights over the batch",
        )


def off_policy_masking(draft: Draft) -> None:
    """Sets the masking of samples that have become too unlikely under the policy."""
    flags = draft.given("--use-opsm", "--opsm-delta")
    if "--use-opsm" not in draft.flags:
        for flag in flags:
            draft.note(flag, "no effect without --use-opsm")
    elif draft.updates == 1 and "--use-rollout-logprobs" not in draft.flags and draft.algorithm != "sft":
        for flag in flags:
            draft.note(
                flag,
                "no effect in slime: a step has one update, before which old and new policy are equal. "
                "algorithm.opsm would mask samples: it compares with the engine's log-probs",
            )
    else:
        names = tuple(flag.name for flag in flags)
        if "--use-rollout-logprobs" not in draft.flags:
            draft.notes.append(
                "algorithm.opsm compares with the engine's log-probs, slime with the trainer's"
            )
        draft.set("algorithm.opsm", draft.number("--opsm-delta", _DEFAULT_DELTA), names)


def old_log_probs(draft: Draft) -> None:
    """Sets whether the denominator of the ratio is the engine's log-probs."""
    for flag in draft.given("--use-rollout-logprobs"):
        if draft.algorithm == "sft":
            draft.note(flag, "sft has no such parameter")
        elif "--use-tis" in draft.flags:
            draft.note(flag, "no effect: --use-tis needs the trainer's own log-probs, in slime too")
        else:
            draft.set("trainer.old_log_probs", "rollout", (flag.name,))


def distillation(draft: Draft) -> None:
    """Sets the distillation term, which compares the policy with a teacher's log-probs."""
    flags = draft.given("--use-opd", "--opd-type", "--opd-kl-coef", "--opd-teacher-load")
    if draft.text("--advantage-estimator") == "on_policy_distillation":
        draft.notes.append("teacher.path: set it to the teacher's Hugging Face folder or id, under [teacher]")
    if "--use-opd" not in draft.flags or draft.algorithm == "sft":
        for flag in flags:
            draft.note(flag, "no effect without --use-opd and a policy loss")
        return
    coefficient = draft.number("--opd-kl-coef", 1.0)
    names = tuple(flag.name for flag in draft.given("--use-opd", "--opd-kl-coef"))
    if coefficient > 0:
        draft.set("algorithm.distillation.coef", coefficient, names)
    else:
        draft.note(draft.flags["--use-opd"], "no effect: --opd-kl-coef is 0")
        return
    _teacher(draft, draft.text("--opd-type"))


def _teacher(draft: Draft, kind: str | None) -> None:
    """Sets the teacher's Hugging Face folder, or the server that serves it."""
    if kind == "sglang":
        url = bare_address((draft.text("--rm-url") or "http://HOST:PORT").removesuffix("/generate"))
        draft.set("engines.0.name", "teacher", ("--opd-type",))
        draft.set(
            "engines.0.type", "external", ("--opd-type",), "a server that the job neither starts nor stops"
        )
        draft.set("engines.0.urls", [url], ("--rm-url",))
        draft.set("teacher.engine", "teacher", ("--opd-type",))
        return
    for flag in draft.given("--opd-type", "--opd-teacher-load"):
        path = (draft.text("--opd-teacher-load") or "").rstrip("/")
        draft.set("teacher.path", path.removesuffix(_MEGATRON_FOLDER), (flag.name,), "--opd-teacher-load")
    for flag in draft.given("--opd-teacher-load"):
        draft.note(flag, "the teacher is read from a Hugging Face folder: see teacher.path")
