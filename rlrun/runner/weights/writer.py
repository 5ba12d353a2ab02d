"""The way weights take from trainer rank 0 to the engines of a spec."""

from collections.abc import Mapping, Sequence

from rlrun.runner.weights.serialized import SerializedWriter
from rlrun.runner.weights.shared_memory import SharedWeights
from rlrun.specs.job import Spec
from rlrun.specs.layout import layout_of

WeightWriter = SharedWeights | SerializedWriter


def weight_writer(spec: Spec, job: str, shapes: Mapping[str, Sequence[int]]) -> WeightWriter:
    """The writer for the spec's kind of engine; `job` names segments, `shapes` every tensor."""
    if spec.engine.type == "native":
        return SharedWeights(job, shapes, spec.engine.dtype)
    readers = layout_of(spec, rollout=True).engines * spec.engine.tensor
    return SerializedWriter(shapes, spec.engine.dtype, readers)
