"""Rules of top-p and top-k in training: whether sampling masks are recorded, and how large they may be."""

from collections.abc import Iterator

from rlrun.specs.derived.sampling_mask import cuts_vocabulary, records_mask
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
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
    corrects = not needs.old_log_probs or needs.trainer_log_probs or records_mask(spec, needs)
    if cuts_vocabulary(spec) and not corrects:
        message = (
            "samples are drawn from a part of the vocabulary (top_p, top_k), and "
            f"{spec.algorithm.type} would train log-probs over the whole of it"
        )
        cure = "remove it, or add algorithm.correction"
        yield Finding(MASK, message, cure, "true", False, related=(TOP_P, TOP_K))


def mask_size(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """SGLang records masks only with a finite top-k, up to the size that its memory is allocated for."""
    if not records_mask(spec, needs) or spec.engine.type not in ("sglang", "external"):
        return
    related: tuple[KeyPath, ...] = (TOP_P, TOP_K, ("engine", "type"))
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


MASK_RULES = (truncated_sampling, mask_size)
