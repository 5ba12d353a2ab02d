"""The sections of a spec that describe engines."""

from collections.abc import Iterator

from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

POLICY: KeyPath = ("engine",)


def engine_sections(spec: Spec) -> Iterator[tuple[KeyPath, EngineSpec]]:
    """Yields `[engine]`, then each of `[[engines]]`, with its key path."""
    yield POLICY, spec.engine
    for number, section in enumerate(spec.engines):
        yield ("engines", number), section
