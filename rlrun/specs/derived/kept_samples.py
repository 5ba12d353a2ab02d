"""Decides how many ended samples a native engine keeps in its cache for later turns."""

from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.job import Spec


def kept_samples(spec: Spec, section: EngineSpec) -> int:
    """Returns the number for the engines of `[engine]`, or of one of `[[engines]]`."""
    if section.type != "native":
        return 0
    given: int | None = section.given("kept_samples")
    if given is not None:
        return given
    single = all(function.type == "single_turn" for function in spec.functions)
    has_one_turn = single or isinstance(section, NamedEngineSpec)
    return 0 if has_one_turn or spec.deterministic else section.max_running
