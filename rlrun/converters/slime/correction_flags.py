"""Translates slime's flags about the gap between the engine's log-probs and the policy's."""

from collections.abc import Mapping
from typing import Any

from rlrun.converters.slime.draft import Draft, Flag, file_settings
from rlrun.converters.slime.flag_table import flag_table

_DEFAULT_DELTA = 1e-4
_MIS = "mis.compute_mis_weights"
_ICEPOP = "icepop_function"


def correction(draft: Draft) -> None:
    """Sets the correction of the gap between engine and trainer, if --use-tis is given."""
    custom, corrected = draft.text("--custom-tis-function-path") or "", _is_corrected(draft)
    if not corrected or _MIS not in custom:
        for flag in draft.given("--custom-config-path"):
            draft.note(flag, "write the parameters of a plugin as keys of the spec, next to its `type`")
            _note_overrides(draft, flag, file_settings(draft, flag.name) or {})
    if not corrected:
        for flag in draft.given("--tis-clip", "--tis-clip-low", "--custom-tis-function-path"):
            draft.note(flag, "no effect without --use-tis")
    elif _MIS in custom:
        draft.set("algorithm.correction.type", "mis", ("--use-tis", "--custom-tis-function-path"))
        _masked_importance_sampling(draft)
    elif custom and not custom.endswith(_ICEPOP):
        note = "or use a published correction with `algorithm.correction`"
        for flag in draft.given("--custom-tis-function-path", "--use-tis"):
            draft.note(flag, note)
    else:
        flags = tuple(flag.name for flag in draft.given("--use-tis", "--custom-tis-function-path"))
        kind = "icepop" if custom else "tis"
        draft.set("algorithm.correction.type", kind, flags)
        _bounds(draft, kind)


def _is_corrected(draft: Draft) -> bool:
    """Returns whether slime corrects; the file of --custom-config-path replaces the flag, as any other."""
    settings = file_settings(draft, "--custom-config-path") or {}
    return bool(settings.get("use_tis", "--use-tis" in draft.flags))


def _bounds(draft: Draft, kind: str) -> None:
    """Sets the bounds. slime gives IcePop the defaults of TIS, although its published bounds differ."""
    for name, key, default in (("--tis-clip", "high", 2.0), ("--tis-clip-low", "low", 0.0)):
        if name in draft.flags:
            draft.set(f"algorithm.correction.{key}", draft.number(name, default), (name,))
        elif kind == "icepop":
            draft.set(f"algorithm.correction.{key}", default, (), f"slime's default without {name}")


def _masked_importance_sampling(draft: Draft) -> None:
    """Sets the parameters of slime's example `mis`, which are in the file of --custom-config-path."""
    for flag in draft.given("--tis-clip", "--tis-clip-low"):
        draft.note(flag, "no effect: the bounds are in the file of --custom-config-path")
    settings = file_settings(draft, "--custom-config-path")
    if settings is None:
        return
    source, prefix = ("--custom-config-path",), "algorithm.correction"
    high = _number(draft, settings, "tis_upper_bound") or 2.0
    low = _number(draft, settings, "tis_lower_bound") or 1.0 / high
    mode = settings.get("tis_mode", "truncate")
    draft.set(f"{prefix}.level", settings.get("tis_level", "token"), source, "tis_level")
    draft.set(f"{prefix}.mode", mode, source, "tis_mode")
    draft.set(f"{prefix}.high", high, source, "tis_upper_bound")
    if mode != "truncate":
        draft.set(f"{prefix}.low", low, source, "tis_lower_bound")
    if settings.get("use_rs"):
        bounds = {"low": low, "high": high}
        draft.set(f"{prefix}.rejection.level", settings.get("rs_level", "token"), source, "use_rs, rs_level")
        for name, bound in bounds.items():
            theirs = f"rs_{'lower' if name == 'low' else 'upper'}_bound"
            draft.set(f"{prefix}.rejection.{name}", _number(draft, settings, theirs) or bound, source, theirs)
        if veto := _number(draft, settings, "rs_veto_threshold"):
            draft.set(f"{prefix}.veto", veto, source, "rs_veto_threshold")
    flag = draft.flags["--custom-config-path"]
    if settings.get("tis_batch_normalize"):
        comment = "tis_batch_normalize: over the step; slime does so within each micro-batch"
        draft.set(f"{prefix}.normalize", True, source, comment)
    if (settings.get("use_rs") or mode == "mask") and _has_other_terms(draft):
        draft.note(flag, "rejected tokens keep their KL and entropy terms; slime leaves these out too")
    _note_overrides(draft, flag, {name: value for name, value in settings.items() if name != "use_tis"})


def _number(draft: Draft, settings: Mapping[str, Any], name: str) -> float | None:
    """Returns a number of the file; None if it has none, with a note if it has something else."""
    value = settings.get(name)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        draft.note(draft.flags["--custom-config-path"], f"{name}: {value} is not a number; it is left out")
        return None


def _has_other_terms(draft: Draft) -> bool:
    """Returns whether the loss has terms beside the policy loss."""
    kl = "--use-kl-loss" in draft.flags and draft.number("--kl-loss-coef", 0.0)
    return bool(kl or draft.number("--entropy-coef", 0.0))


def _note_overrides(draft: Draft, flag: Flag, settings: Mapping[str, Any]) -> None:
    """Notes which settings of the file replace a flag of slime, as any name of a flag does."""
    names = [f"--{str(name).replace('_', '-')}" for name in settings]
    if overrides := [name for name in names if name in flag_table()]:
        draft.note(flag, f"the file also sets {', '.join(overrides)}: give them as flags, or set their keys")


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
    """Sets whose log-probs are the denominator of the ratio.

    Where samples may be stale, rlrun takes the engine's by default, and slime the trainer's.
    """
    engines, generating = draft.given("--use-rollout-logprobs"), draft.given("--keep-old-actor")
    corrected, rollout = _is_corrected(draft), draft.values.get("rollout", {})
    for flag in (*engines, *generating):
        if draft.algorithm == "sft":
            draft.note(flag, "sft has no such parameter")
        elif corrected:
            draft.note(flag, "no effect: a correction needs the trainer's own log-probs, in slime too")
    if draft.algorithm == "sft":
        return
    stale = rollout.get("mode") == "async" or "partial" in rollout
    if engines and not corrected:
        draft.set("trainer.old_log_probs", "rollout", (engines[0].name,))
    elif generating and stale and not corrected:
        comment = "the weights that generated a sample; slime computes their log-probs in the trainer"
        draft.set("trainer.old_log_probs", "rollout", (generating[0].name,), comment)
    elif stale:
        draft.set("trainer.old_log_probs", "trainer", (), "slime's default without --use-rollout-logprobs")
    for flag in generating if not corrected else ():
        if engines:
            draft.note(flag, "no effect: --use-rollout-logprobs takes precedence")
        elif not stale:
            why = (
                "samples are generated by the weights that are trained next, whose log-probs are the old ones"
            )
            draft.note(flag, f"left out: without asynchrony {why}")
