"""Translates slime's flags about the loss: algorithm, clipping, KL, distillation."""

from rlrun.converters.imports.secrets import bare_address
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import flag_table

_DEFAULT_CLIP = 0.2
_WITH_OTHER_CLIP = ("gspo", "cispo")
"""Algorithms whose default bounds differ from slime's."""
_MEGATRON_FOLDER = "_torch_dist"


def algorithm(draft: Draft) -> None:
    """Sets the algorithm, which slime's advantage estimator or loss names."""
    if draft.is_pure_distillation:
        flags = draft.given("--use-opd", "--custom-rm-path", "--custom-reward-post-process-path")
        draft.set("algorithm.type", "on_policy_distillation", tuple(flag.name for flag in flags))
        for flag in draft.given("--advantage-estimator"):
            draft.note(flag, "no effect: rewards are 0, and only the teacher determines the advantages")
        return
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
