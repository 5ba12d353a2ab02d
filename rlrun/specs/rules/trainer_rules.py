"""Warnings about `[trainer]` and engines that the job does not start."""

from collections.abc import Iterator

from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

HEAD_DTYPE: KeyPath = ("trainer", "head_dtype")


def external_heads(spec: Spec) -> Iterator[Finding]:
    """Warns that engines which rlrun does not start compute logits in a precision of their own.

    Only engines whose log-probs are compared with the trainer's matter: not a judge's.
    """
    if spec.trainer.head_dtype != "float32":
        return
    compared = {spec.reference.engine, spec.teacher.engine if spec.teacher else None} - {None}
    for path, section in engine_sections(spec):
        matters = path == POLICY or getattr(section, "name", None) in compared
        if matters and section.type == "external":
            message = (
                f"does not reach the external engines of {dotted(path)}, which compute as they were started"
            )
            cure = "start them with --enable-fp32-lm-head (SGLang) or --head-dtype float32 (rlrun's engine)"
            yield Finding(HEAD_DTYPE, message, cure, at_value=False, related=((*path, "type"),))
