"""Translates slime's flags about the gap between the engine's log-probs and the policy's."""

from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.settings_file import file_settings

_DEFAULT_DELTA = 1e-4
_MIS = "mis.compute_mis_weights"
_ICEPOP = "icepop_function"


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
    settings = file_settings(draft, "--custom-config-path")
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
