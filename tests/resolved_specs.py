"""Specs as a job's processes get them: every key has a value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.plugins.validation import needs_of
from rlrun.specs.derived.default_dtype import choose_dtypes, with_dtypes
from rlrun.specs.derived.policy_model import read_policy
from rlrun.specs.derived.resolution import resolve
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import RolloutSpec
from rlrun.specs.sections.trainer import TrainerSpec


def resolved(spec: Spec | Mapping[str, Any], *models: Architecture) -> Spec:
    """The resolved spec of a job, on a processor that multiplies in bfloat16.

    `models`: its policy and its teacher; without any the policy is the one in `model.path`, if that is a
    folder.
    """
    written = spec if isinstance(spec, Spec) else Spec.model_validate(spec)
    with_dtype = with_dtypes(written, choose_dtypes(written, native_bfloat16=True))
    folder = Path(written.model.path)
    if not models and (folder / "config.json").is_file():
        models = (read_policy(folder, written, needs_of(written)),)
    return resolve(with_dtype, needs_of(with_dtype), models).spec


def resolved_trainer(**settings: Any) -> TrainerSpec:
    """`[trainer]` of a resolved spec."""
    return _resolved_with(trainer=settings).trainer


def resolved_engine(**settings: Any) -> EngineSpec:
    """`[engine]` of a resolved spec."""
    return _resolved_with(engine=settings).engine


def resolved_rollout(**settings: Any) -> RolloutSpec:
    """`[rollout]` of a resolved spec."""
    return _resolved_with(rollout=settings).rollout


def _resolved_with(**sections: Any) -> Spec:
    return resolved({"model": {"path": "m"}, "data": {}} | sections)
