"""Translates slime's flags about the speculative decoding of its SGLang servers."""

from rlrun.converters.slime.draft import Draft

_PREFIX = "--sglang-speculative-"
_ALGORITHM, _FOLDER = f"{_PREFIX}algorithm", f"{_PREFIX}draft-model-path"
_TOKENS, _STEPS, _BRANCHES = f"{_PREFIX}num-draft-tokens", f"{_PREFIX}num-steps", f"{_PREFIX}eagle-topk"
_ALGORITHMS = ("ngram", "eagle3", "dflash", "standalone")


def speculation(draft: Draft) -> None:
    """Sets `[engine.speculative]`, and the arguments of servers whose drafts have branches."""
    flags = draft.given(_ALGORITHM, _FOLDER, _TOKENS, _STEPS, _BRANCHES)
    algorithm = _algorithm(draft)
    for flag in flags:
        if draft.given("--rollout-external-engine-addrs"):
            draft.note(flag, "no effect: external engines have their own settings")
        elif algorithm is None:
            draft.note(flag, f"no effect: {_ALGORITHM} names none of rlrun's algorithms")
    if algorithm is None or draft.given("--rollout-external-engine-addrs"):
        return
    draft.set("engine.speculative.algorithm", algorithm, (_ALGORITHM,))
    if algorithm not in ("mtp", "ngram") and (folder := draft.text(_FOLDER)):
        draft.set("engine.speculative.draft_model", folder, (_FOLDER,))
    has_branches = draft.count(_BRANCHES, 1) > 1
    tokens, key = draft.whole(_TOKENS, 0), "engine.speculative.draft_tokens"
    if not has_branches and draft.given(_STEPS):
        draft.set(key, draft.count(_STEPS, 1), (_STEPS, _TOKENS, _BRANCHES))
    elif tokens > 1:
        draft.set(key, tokens - 1, (_TOKENS,), "SGLang counts the token before the draft, too")
    if has_branches:
        for flag in draft.given(_STEPS, _BRANCHES):
            name = flag.name.removeprefix("--sglang-").replace("-", "_")
            draft.set(f"engine.sglang.{name}", draft.count(flag.name, 1), (flag.name,))


def _algorithm(draft: Draft) -> str | None:
    """Returns the `algorithm` of the spec; None if no flag names one that it has.

    SGLang's EAGLE without a draft model uses the policy's own layers for multi-token prediction.
    """
    name = (draft.text(_ALGORITHM) or "").lower()
    if name in ("eagle", "nextn"):
        is_own = draft.text(_FOLDER) in (None, draft.text("--hf-checkpoint"))
        return "mtp" if is_own else "eagle"
    return name if name in _ALGORITHMS else None
