"""Lets a resumed run keep the choices of the host and of the version of rlrun that it began with.

A spec may leave the kind of an engine open, which then depends on the packages of the host
(`specs/reading/engine_types.py`), and the precision, which depends on its processor. Runs that began when
prefixes were not shared by default have `share_prefixes = false` in their lock.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlrun.specs.derived.default_dtype import DtypeChoice, with_dtypes
from rlrun.specs.derived.default_engine import EngineChoice
from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.job import Spec

_BEGAN = "the run began with "


def keep_choices(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the choices of the run's lock where it leaves them open."""
    return _keep_sharing(_keep_dtypes(_keep_engines(loaded, locked["spec"]), locked["spec"]), locked["spec"])


def _keep_engines(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the engines of the run's lock wherever another host could have led to others."""
    spec, choices = loaded.spec, dict(loaded.engine_choices)
    for path, choice in choices.items():
        before = _locked_value(spec, path, locked, "type")
        if choice.depends_on_host and before in ("native", "sglang") and before != choice.type:
            choices[path] = EngineChoice(before, f"{_BEGAN}them")
            spec = _with_type(spec, path, before)
    return replace(loaded, spec=spec, engine_choices=choices)


def _keep_dtypes(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the precisions of the run's lock, which another processor would change."""
    choices = dict(loaded.dtype_choices)
    for path, choice in choices.items():
        before = _locked_value(loaded.spec, path, locked, "dtype")
        if choice.follows_processor and before in ("float32", "bfloat16") and before != choice.dtype:
            choices[path] = DtypeChoice(before, f"{_BEGAN}it")
    return replace(loaded, spec=with_dtypes(loaded.spec, choices), dtype_choices=choices)


def _keep_sharing(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec without shared prefixes if it leaves them open, and the run's lock says that it began
    without; log-probs would otherwise change by rounding.
    """
    spec, before = loaded.spec, locked.get("trainer", {}).get("share_prefixes")
    if spec.trainer.given("share_prefixes") is not None or before is not False:
        return loaded
    trainer = spec.trainer.model_copy(update={"share_prefixes": False})
    return replace(loaded, spec=spec.with_sections(trainer=trainer))


def _locked_value(spec: Spec, path: KeyPath, locked: Mapping[str, Any], key: str) -> Any:
    """Returns a section's value in a lock; None where the lock does not have the section."""
    if len(path) == 1:
        return locked.get(str(path[0]), {}).get(key)
    name = spec.engines[int(path[1])].name
    return next((table.get(key) for table in locked.get("engines", []) if table.get("name") == name), None)


def _with_type(spec: Spec, path: KeyPath, kind: str) -> Spec:
    if path == POLICY:
        return spec.model_copy(update={"engine": spec.engine.model_copy(update={"type": kind})})
    sections = [
        section.model_copy(update={"type": kind}) if number == path[1] else section
        for number, section in enumerate(spec.engines)
    ]
    return spec.model_copy(update={"engines": tuple(sections)})
