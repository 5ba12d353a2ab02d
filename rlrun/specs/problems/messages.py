"""Explains pydantic's errors to the author of a spec: what is wrong, the value found, and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.docstrings import field_docstrings
from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest, plain
from rlrun.specs.problems.suggestions import (
    COMPOSITION_KEYS,
    KeyIndex,
    section_models,
    table_name,
)
from rlrun.specs.problems.wrong_values import explain_value

_LORA = ("lora", "peft", "use_lora", "use_peft")
"""Prefixes of the keys that configure adapters in other trainers."""
_NOWHERE = "parameters"
"""Name of the table that `describe_errors` puts values into, since they are in no file."""


class Explainer:
    """Turns validation errors of a document into findings; `keys` knows the section of each key."""

    def __init__(self, data: Mapping[str, Any], keys: KeyIndex) -> None:
        self.data = data
        self.keys = keys

    def findings(
        self, error: ValidationError, model: type[BaseModel], prefix: KeyPath = (), more: Sequence[str] = ()
    ) -> list[Finding]:
        """Returns a finding for each error, at `prefix` + pydantic's location.

        `more`: keys that are valid in addition to the fields of the model.
        """
        findings: list[Finding] = []
        missing: list[Finding] = []
        for each in _without_counts(error.errors(include_url=False)):
            path = (*prefix, *each["loc"])
            table = _model_at(model, each["loc"][:-1])
            valid = [*(table.model_fields if table else ()), *(more if len(each["loc"]) == 1 else ())]
            valid += COMPOSITION_KEYS if len(path) == 1 else ()
            match each["type"]:
                case "missing" if isinstance(path[-1], int):
                    array = path[:-1]
                    count = len(_at(self.data, array))
                    cure = "add the missing elements"
                    findings.append(
                        Finding(
                            array,
                            f"must have more than {count} elements",
                            cure,
                            found=count,
                            code=Code.RANGE,
                        )
                    )
                case "missing":
                    missing.append(self._missing(path, table))
                case "extra_forbidden":
                    findings.append(self.unknown_key(path, valid))
                case _:
                    findings.append(explain_value(_present(path, self.data), each))
        # A required key that is misspelt is reported once, as the misspelling.
        meant = {(*finding.path[:-1], finding.suggestion) for finding in findings if finding.suggestion}
        return findings + [finding for finding in missing if finding.path not in meant]

    def unknown_key(self, path: KeyPath, valid: Sequence[str]) -> Finding:
        """Returns the finding about a key that its table does not have."""
        key = str(path[-1])
        suggestion = self.keys.suggest(path, valid)
        known = ", ".join(sorted(valid)) or "none"
        table = f"[{table_name(path[:-1])}]" if len(path) > 1 else "the spec's top level"
        if suggestion is None and plain(key).startswith(_LORA):
            cure = "adapters are trained by a table [trainer.lora] with rank, alpha and targets"
            return _unknown(path, cure)
        if suggestion is None:
            return _unknown(path, f"{table} takes: {known}")
        section, _, leaf = suggestion.rpartition(".")
        if leaf == key and leaf not in valid:
            home = f"[{section}]" if section else "the top of the file, before the first table"
            return _unknown(path, f"move it to {home}", suggestion, f"{key} belongs to {home}")
        return _unknown(path, f"did you mean `{suggestion}`?", suggestion)

    def _missing(self, path: KeyPath, table: type[BaseModel] | None) -> Finding:
        """Returns the finding about a missing required key, or about a key that is a misspelling of it.

        A table that accepts any key, for parameters of a plugin, does not report the misspelling itself.
        """
        key = str(path[-1])
        written = _at(self.data, path[:-1])
        if table and isinstance(written, dict) and len(path) > 1:
            strays = [name for name in written if name not in table.model_fields]
            if stray := nearest(key, strays):
                return _unknown((*path[:-1], stray), f"did you mean `{key}`?", key)
        field = table.model_fields.get(key) if table else None
        about = f": {text}" if table and (text := field_docstrings(table).get(key)) else ""
        is_table = field is not None and next(section_models(field.annotation), None) is not None
        add = f"a table `[{table_name(path)}]`" if is_table else f"`{key} = …`"
        cure = f"add {add}{about}"
        return Finding(path, "required and not given", cure, at_value=False, code=Code.MISSING_KEY)


def _without_counts(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drops errors about the length of an array with wrong elements: pydantic counts only valid ones."""
    places = [each["loc"] for each in errors]
    return [
        each
        for each in errors
        if each["type"] != "too_short"
        or not any(place[:-1][: len(each["loc"])] == each["loc"] for place in places)
    ]


def _unknown(
    path: KeyPath, cure: str, suggestion: str | None = None, message: str = "unknown key"
) -> Finding:
    return Finding(path, message, cure, suggestion, at_value=False, code=Code.UNKNOWN_KEY)


def describe_errors(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Returns the errors of values that are in no file, each as `key: what is wrong (cure)`.

    `values` are as they were written: for a reference to a secret only the reference is shown.
    """
    data = {_NOWHERE: values}
    findings = Explainer(data, KeyIndex(model)).findings(error, model, (_NOWHERE,))
    return "; ".join(_line(finding, _at(data, _present(finding.path, data))) for finding in findings)


def _line(finding: Finding, written: Any) -> str:
    message = finding.message
    if isinstance(written, str) and "${env:" in written:
        message = f"the value of {written} is not valid"
    elif finding.cure:
        message += f" ({finding.cure.removeprefix(f'[{_NOWHERE}] ')})"
    key = dotted(finding.path[1:])
    return f"{key}: {message}" if key else message


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _model_at(model: type[BaseModel], loc: Sequence[str | int]) -> type[BaseModel] | None:
    """Returns the model of the table at pydantic's location."""
    for part in loc:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = next(section_models(field.annotation), None) if field else None
        if inner is None:
            return None
        model = inner
    return model


def _present(path: KeyPath, data: Any) -> KeyPath:
    """Returns the part of a location that exists in the data: pydantic adds the names of union members."""
    for depth, part in enumerate(path):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return path[:depth]
    return path
