"""Rules of top-p and top-k in training: sampling masks, and the engines and models that can keep to them."""

from collections.abc import Iterator

from rlrun.specs.derived.sampling_mask import cuts_vocabulary, records_mask
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import is_given, no_effect
from rlrun.specs.sections.job import Spec

MASK: KeyPath = ("rollout", "sampling_mask")
TOP_P: KeyPath = ("rollout", "top_p")
TOP_K: KeyPath = ("rollout", "top_k")
_CAP = "sampling-mask-max-tokens"
_SGLANG_CAP = 4096
"""SGLang's own value of that argument."""
_OFF = "or set rollout.sampling_mask = false with an algorithm.correction"


def truncated_sampling(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Samples are drawn from the distribution whose log-probs are trained, or something corrects for it."""
    if not cuts_vocabulary(spec):
        if is_given(spec.rollout, "sampling_mask"):
            why = "without top_p or top_k tokens are drawn from the whole vocabulary"
            yield no_effect(MASK, why, "remove it, or set top_p or top_k", (TOP_P, TOP_K))
    elif needs.old_log_probs and not needs.trainer_log_probs and not records_mask(spec, needs):
        message = (
            "samples are drawn from a part of the vocabulary (top_p, top_k), and "
            f"{spec.algorithm.type} would train log-probs over the whole of it"
        )
        yield Finding(
            MASK, message, "remove it, or add algorithm.correction", "true", False, related=(TOP_P, TOP_K)
        )


def engines_with_masks(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The policy's engines can record masks of this size."""
    if not records_mask(spec, needs):
        return
    related: tuple[KeyPath, ...] = (TOP_P, TOP_K, ("engine", "type"))
    if spec.engine.type == "sleeping":
        message = "sleeping engines draw tokens from no distribution, so they cannot record sampling masks"
        yield Finding(("engine", "type"), message, f"remove top_p and top_k, {_OFF}", found="sleeping")
    if spec.engine.type in ("sglang", "external"):
        yield from _mask_size(spec, related)
    if spec.engine.type != "sglang":
        return
    if spec.engine.router == "sglang-router":
        message = "sglang-router does not pass requests for sampling masks on to the servers"
        key: KeyPath = ("engine", "router")
        yield Finding(key, message, f"remove it, {_OFF}", found="sglang-router", related=related)
    if spec.engine.speculative.algorithm is not None:
        key = ("engine", "speculative", "algorithm")
        message = "SGLang records no sampling masks with speculative decoding"
        yield Finding(key, message, f"remove it, {_OFF}", at_value=False, related=related)


def _mask_size(spec: Spec, related: tuple[KeyPath, ...]) -> Iterator[Finding]:
    """SGLang records masks only with a finite top-k, up to the size that its memory is allocated for."""
    own = {flag_name(name): value for name, value in spec.engine.sglang.items()}
    cap, top_k = own.get(_CAP, _SGLANG_CAP), spec.rollout.top_k
    if not isinstance(cap, int):
        return
    if top_k < 1:
        message = "SGLang records sampling masks only where top_k bounds their size"
        cure = f"add `top_k = 512` (at most {cap}), {_OFF}"
        yield Finding(TOP_P, message, cure, found=spec.rollout.top_p, related=related)
    elif top_k > cap:
        message = f"SGLang records sampling masks of at most {cap} tokens"
        cure = f"at most {cap}, or raise sampling_mask_max_tokens under [engine.sglang]"
        if spec.engine.type == "external":
            cure = f"at most {cap}"
        yield Finding(TOP_K, message, cure, found=top_k, related=related)


def served_models_without_masks(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A reference or teacher can take its log-probs over the masks."""
    if not records_mask(spec, needs):
        return
    for name, section, needed in (
        ("reference", spec.reference, needs.reference),
        ("teacher", spec.teacher, needs.teacher),
    ):
        if needed and section is not None and section.engine is not None:
            message = (
                f"engines give the log-probs of a {name} over the whole vocabulary only, and the policy's "
                "are taken over sampling masks (top_p, top_k)"
            )
            cure = f"remove top_p and top_k, let the trainer hold the {name}, {_OFF}"
            related = (TOP_P, TOP_K, MASK)
            yield Finding((name, "engine"), message, cure, found=section.engine, related=related)


MASK_RULES = (truncated_sampling, engines_with_masks, served_models_without_masks)
