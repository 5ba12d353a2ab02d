"""The base classes of the sections of a spec.

A key whose default follows from other keys, from the model or from the host is a `derived` field. Reading it
before it is resolved (rlrun.specs.derived.resolution) is an error, so that no part of rlrun can have a
default of its own for it:

    trainer.old_log_probs not given ─▶ no attribute: reading it raises AssertionError
                   └▶ resolve ─▶ "rollout", in the driver, the plan, every rank and spec.lock.json
"""

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo


class _Mark(Enum):
    UNRESOLVED = "derived"


def _unresolved() -> _Mark:
    return _Mark.UNRESOLVED


def derived(**constraints: Any) -> Any:
    """Returns the field of a key whose default is resolved before the spec is used.

    Its type is that of the resolved value: None is only part of it where None is such a value.
    """
    return Field(default_factory=_unresolved, **constraints)


def is_derived(field: FieldInfo) -> bool:
    """Returns whether the default of a field is resolved before the spec is used."""
    return field.default_factory is _unresolved


class Section(BaseModel):
    """A frozen table of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="after")
    def _leave_out_unresolved(self) -> Self:
        for name in [name for name, value in self.__dict__.items() if value is _Mark.UNRESOLVED]:
            del self.__dict__[name]
        return self

    if not TYPE_CHECKING:  # otherwise mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            field = type(self).model_fields.get(name)
            if field is not None and is_derived(field):
                # AttributeError would be swallowed by `getattr` with a default
                raise AssertionError(
                    f"`{name}` of {type(self).__name__} was read before it was resolved: call `resolve`, or "
                    f'`given("{name}")` for what the spec itself says'
                )
            return super().__getattr__(name)

    def given(self, name: str) -> Any:
        """Returns the value that the spec gives a key; None where the spec leaves the key open."""
        return getattr(self, name) if name in self.model_fields_set else None

    def open_keys(self) -> Iterator[str]:
        """Yields the derived keys that the spec leaves open, resolved or not."""
        for name, field in type(self).model_fields.items():
            if is_derived(field) and name not in self.model_fields_set:
                yield name

    def resolved(self, **values: Any) -> Self:
        """Returns a copy in which the keys that the spec leaves open have these values.

        They do not count as given, so that they can be resolved again after another key has changed.
        """
        return self.with_sections(**{name: values[name] for name in self.open_keys() if name in values})

    def with_sections(self, **values: Any) -> Self:
        """Returns a copy with these values, which count as given only where the keys already did."""
        copy = self.model_copy()
        copy.__dict__.update(values)
        return copy


class PluginSection(Section):
    """A table whose `type` names a plugin; all keys but the section's own are the plugin's parameters.

    The plugin's own `Params` model checks the parameters (rlrun.plugins.validation) and reports errors at
    their position in the file.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    """Name of the plugin, as its package registered it (`rlrun plugins list`)."""

    @property
    def params(self) -> dict[str, object]:
        """The plugin's own parameters, as written."""
        return dict(self.model_extra or {})
