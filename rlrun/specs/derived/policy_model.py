"""The policy of a spec: its model with the parts that the trainer computes, and what of it is not trained."""

from pathlib import Path

from rlrun.models.architecture import Architecture, scoring_model
from rlrun.models.config_json import with_mtp_layer, with_vision_tower
from rlrun.models.tensor_names import INDEXER
from rlrun.models.transformers_models import read_model
from rlrun.specs.needs import Needs
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import TrainerSpec


def read_policy(folder: Path, spec: Spec, needs: Needs) -> Architecture:
    """Returns the architecture of the policy in a model folder. Raises ValueError if it cannot be used."""
    return policy_model(read_model(folder, spec.model.implementation), spec, needs)


def policy_model(model: Architecture, spec: Spec, needs: Needs) -> Architecture:
    """Returns a model's architecture with its vision tower as `trainer.vision_tower` says, with its MTP layer
    if `trainer.mtp_loss` trains it, and with the head that the algorithm needs. Raises ValueError if the
    model lacks one of these parts.
    """
    if spec.model.implementation == "transformers":
        return model
    model = with_vision_tower(model, spec.trainer.given("vision_tower"))
    if needs.scores:
        return scoring_model(model)
    return with_mtp_layer(model) if spec.trainer.mtp_loss else model


def frozen_patterns(spec: TrainerSpec, model: Architecture) -> tuple[str, ...]:
    """Returns patterns of the Hugging Face names of all parameters that are not trained: those of
    `trainer.freeze`, the vision tower's unless it is trained, and those of indexers, which have no gradient.
    """
    indexers = (f"*{INDEXER}*",) if model.indexer is not None else ()
    return (*spec.freeze, *frozen_tower(spec, model), *indexers)


def frozen_tower(spec: TrainerSpec, model: Architecture) -> tuple[str, ...]:
    """Returns the pattern of the vision tower's parameters if the tower is computed and not trained."""
    if model.tower is None or spec.vision_tower == "trained":
        return ()
    return (f"{model.tower.prefix}*",)


def drafts_with_mtp(spec: Spec) -> bool:
    """Returns whether the policy's engines speculate with its MTP layer. SGLang 0.5.23 gives every update to
    the model that drafts, too (managers/scheduler_components/weight_updater.py).
    """
    return spec.engine.type == "sglang" and spec.engine.speculative.algorithm == "mtp"
