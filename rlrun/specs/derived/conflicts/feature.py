"""A feature of a job: a named predicate over its spec, the needs of its algorithm, and its model."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.specs.needs import Needs
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section, is_derived


@dataclass(frozen=True, slots=True)
class Job:
    """What predicates look at."""

    spec: Spec
    """The spec as it is written, or resolved."""
    needs: Needs | None = None
    """The needs of the algorithm; None where it could not be created."""
    model: Architecture | None = None
    """The policy, with its vision tower if that is computed; None where its config.json is not known."""

    def value(self, key: str) -> Any:
        """Returns the value of a dotted key; None for a derived key that the spec leaves open, resolved or
        not: a mistake is only what the spec itself says.
        """
        section, name = self._section(key)
        if section is None:
            return None
        field = type(section).model_fields.get(name)
        if field is None:
            return (section.model_extra or {}).get(name)
        return section.given(name) if is_derived(field) else getattr(section, name)

    def gives(self, key: str) -> bool:
        """Returns whether the spec itself has this key, rather than leaving it at its default."""
        section, name = self._section(key)
        return section is not None and name in section.model_fields_set

    def needed(self, name: str) -> bool | None:
        """Returns one of the algorithm's needs; None where they are not known."""
        return None if self.needs is None else bool(getattr(self.needs, name))

    @property
    def has_gpus(self) -> bool:
        """Whether the cluster has GPUs."""
        return bool(self.spec.cluster.gpus_per_node)

    def _section(self, key: str) -> tuple[Section | None, str]:
        tables, name = _parts(key)
        section: Any = self.spec
        for table in tables:
            section = None if section is None else getattr(section, table)
        return section, name


@cache
def _parts(key: str) -> tuple[tuple[str, ...], str]:
    """Returns the tables of a dotted key, and its last name."""
    *tables, name = key.split(".")
    return tuple(tables), name


Test = Callable[[Job], Any]


@dataclass(frozen=True, slots=True)
class Feature:
    """A named predicate, and how to change a spec so that it does not hold."""

    name: str
    """How messages and the documentation name the feature: `trainer.compile`, `external engines`."""
    key: str
    """The dotted key at which a finding about the feature is reported."""
    holds: Test
    off: str | None = ""
    """The TOML value to set the key to instead, or "" to remove it. None: there is no such value."""
    related: tuple[str, ...] = ()
    """Further keys that the predicate reads."""
    is_absence: bool = False
    """Whether the predicate holds where the feature of this name is missing. `off` is then how to have it."""
    of_model: Callable[[Architecture], bool] | None = None
    """The predicate of a model, which waits for the model's config.json; None: the spec decides."""

    def when(self, test: Test, name: str, *related: str) -> "Feature":
        """Returns the feature that holds where this one holds and `test`, too."""
        own = self.holds
        related = (*self.related, *related)
        return replace(self, name=name, holds=lambda job: own(job) and test(job), related=related)

    def undo(self, key: str) -> str | None:
        """Returns what to do about the feature at `key`; None if it cannot be changed there."""
        if self.off is None:
            return None
        if self.off:
            return f"set {key} = {self.off}"
        return f"{'add' if self.is_absence else 'remove'} {self.name if self.name[0] == '[' else key}"


def model_with(
    name: str,
    test: Callable[[Architecture], bool],
    key: str = "model.path",
    off: str | None = None,
    *,
    is_absence: bool = False,
) -> Feature:
    """Returns a feature of the policy's architecture."""

    def holds(job: Job) -> bool:
        return job.model is not None and test(job.model)

    return Feature(name, key, holds, off, ("model.path",), is_absence, test)


def on(key: str, name: str = "") -> Feature:
    """Returns the feature of a key whose value is not false, empty or 0."""
    return Feature(name or key, key, lambda job: job.value(key))


def given(key: str, name: str = "") -> Feature:
    """Returns the feature of a key that the spec has, whatever its value."""
    return Feature(name or key, key, lambda job: job.gives(key))


def equal(key: str, value: object, off: str | None = "") -> Feature:
    """Returns the feature of a key with this value."""
    return Feature(f"{key} = {json.dumps(value)}", key, lambda job: job.value(key) == value, off)


def unequal(key: str, value: object, name: str = "") -> Feature:
    """Returns the feature of a key with any other value than this."""
    shown = json.dumps(value)
    return Feature(
        name or f"a {key} other than {shown}", key, lambda job: job.value(key) not in (value, None), shown
    )


def above_one(key: str) -> Feature:
    """Returns the feature of a degree of parallelism."""
    return Feature(f"{key} > 1", key, lambda job: job.value(key) > 1, "1")


def missing(feature: Feature, off: str | None = None) -> Feature:
    """Returns the absence of a feature. `off`: the TOML value of the key with which it is there; None: the
    value in its name, `rollout.mode = "async"`, or any.
    """
    if off is None:
        off = feature.name.partition(" = ")[2]
    holds = feature.holds
    return replace(feature, holds=lambda job: not holds(job), off=off, is_absence=True)
