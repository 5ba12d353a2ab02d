"""Which layers each pipeline stage has."""

from itertools import accumulate

from rlrun.models.architecture import Architecture
from rlrun.specs.sections.trainer import ParallelSpec


def stage_layers(layers: int, parallel: ParallelSpec) -> list[range]:
    """Returns the layers of each stage: as many as `parallel.pipeline_layers` says, else equal numbers."""
    sizes = parallel.pipeline_layers or _equal_sizes(layers, parallel.stages)
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _equal_sizes(layers: int, stages: int) -> list[int]:
    """Returns the number of layers of each stage, divided as evenly as possible.

    If they do not divide evenly, the last stage, which has the head, is the first to get a layer fewer, then
    the first stage, which has the embedding.
    """
    sizes = [layers // stages] * stages
    for stage in [*range(1, stages - 1), 0, stages - 1][: layers % stages]:
        sizes[stage] += 1
    return sizes


def stage_without_choice(model: Architecture, parallel: ParallelSpec) -> tuple[str, str] | None:
    """Returns why a stage cannot begin with its first layer, which takes the keys that an indexer of another
    stage chooses, and the cure; None if every stage can.
    """
    if model.indexer is None or parallel.stages == 1:
        return None
    for stage in stage_layers(model.layers, parallel)[1:]:
        if (source := model.indexer.source(stage.start)) != stage.start:
            firsts = ", ".join(str(layer) for layer in sorted(model.indexer.layers)[1:])
            message = (
                f"a pipeline stage begins with layer {stage.start}, which attends to the keys that the "
                f"indexer of layer {source} chooses on another stage"
            )
            cure = (
                "set trainer.parallel.pipeline_layers so that stages begin with some of the layers " + firsts
            )
            return message, cure
    return None
