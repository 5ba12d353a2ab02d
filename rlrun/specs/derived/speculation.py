"""Turns `[engine.speculative]` into the settings of each kind of engine."""

from collections.abc import Mapping
from typing import Any, Literal

from rlrun.models.families.table import family_named, family_of
from rlrun.specs.sections.engine import EngineSpec

NATIVE_DRAFT_TOKENS = 8
"""Most tokens of a draft in the native engine by default."""
DRAFT_FOLDER = ("eagle", "eagle3", "dflash", "standalone")
"""Algorithms whose draft model is in a folder of its own."""
_STEPWISE = ("mtp", "eagle", "eagle3", "standalone")
"""Algorithms whose draft model guesses one token after the other."""
_SGLANG_NAMES = {"mtp": "NEXTN"}
_VERIFIED = {"ngram": 12, "dflash": 16}
"""Tokens that SGLang 0.5.23 verifies at a time unless it is told (arg_groups/speculative_hook.py)."""
_VERIFIED_STANDALONE = 4


def native_draft_tokens(section: EngineSpec) -> int:
    """Returns the most tokens of a draft in a native engine; 0 without speculation."""
    if section.speculative.algorithm is None:
        return 0
    return section.speculative.draft_tokens or NATIVE_DRAFT_TOKENS


def sglang_speculation(section: EngineSpec) -> dict[str, Any]:
    """Returns the arguments of an SGLang server.

    SGLang counts the token before a draft among the draft's tokens. Where drafts are made step by step, it
    requires the number of steps beside that of tokens, and how many tokens a step may branch into; a tree is
    made by arguments of `[engine.sglang]`, which take precedence.
    """
    algorithm, guessed = section.speculative.algorithm, section.speculative.draft_tokens
    if algorithm is None:
        return {}
    arguments: dict[str, Any] = {"speculative_algorithm": _SGLANG_NAMES.get(algorithm, algorithm.upper())}
    if section.speculative.draft_model is not None:
        arguments["speculative_draft_model_path"] = section.speculative.draft_model
    if guessed is not None:
        arguments["speculative_num_draft_tokens"] = guessed + 1
        if algorithm in _STEPWISE:
            arguments |= {"speculative_num_steps": guessed, "speculative_eagle_topk": 1}
    return arguments


def verified_tokens(section: EngineSpec, family: str, draft_block: int | None = None) -> int:
    """Returns how many tokens of a sample an SGLang server verifies in one pass; 0 without speculation.

    `family`: the served model's; `draft_block`: the block size of a DFLASH draft model, if it has one.
    """
    algorithm, guessed = section.speculative.algorithm, section.speculative.draft_tokens
    if algorithm is None:
        return 0
    if guessed is not None:
        return guessed + 1
    if algorithm in ("mtp", "eagle", "eagle3"):
        return family_named(family).server.eagle_tokens
    return draft_block or _VERIFIED.get(algorithm, _VERIFIED_STANDALONE)


def has_draft_weights(section: EngineSpec) -> bool:
    """Returns whether an SGLang server has a draft model with weights of its own."""
    return section.type == "sglang" and section.speculative.algorithm not in (None, "ngram")


def updated_models(section: EngineSpec) -> Literal["target", "all"]:
    """Returns which models of an SGLang server get the policy's weights: the model that it serves, and a
    draft model only if it is a part of the policy's checkpoint.

    SGLang 0.5.23 offers every update to draft models too, and loads the tensors whose names it finds there:
    those of the policy's first layers into the layers of an EAGLE3 or DFLASH draft.
    """
    return "all" if section.speculative.algorithm == "mtp" else "target"


def mtp_layers(config: Mapping[str, Any]) -> int:
    """Returns how many layers for multi-token prediction a model's `config.json` declares, or has
    without a declaration (`ServerFacts.undeclared_mtp_layers`).
    """
    text = config.get("text_config") or config
    counts = (text.get(name) for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    declared = next((count for count in counts if count), None)
    return int(declared or family_of(text).server.undeclared_mtp_layers)
