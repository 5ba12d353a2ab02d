"""Explains pydantic's errors to the author of a spec: what is wrong, the value found, and what to do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.docstrings import field_docstrings
from rlrun.specs.problems.findings import Finding, dotted, format_value
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import likeness, nearest, plain
from rlrun.specs.problems.suggestions import (
    COMPOSITION_KEYS,
    OTHER_VALUES,
    KeyIndex,
    relative_to,
    section_models,
    table_name,
)

MAX_KEYS = 12
"""A table with more keys is not listed whole."""
NEARBY_KEYS = 4
_LORA = ("lora", "peft", "use_lora", "use_peft")
"""Prefixes of the keys that configure adapters in other trainers."""
_NOWHERE = "parameters"
"""Name of the table that `describe_errors` puts values into, since they are in no file."""
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "an array",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
}
_BOOLS = {"True", "False"}
"""Booleans as pydantic lists them among choices."""
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_NAMES = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": (
        "use letters, digits, dots, underscores and hyphens; begin with a letter or digit"
    ),
    r"^[a-z][a-z0-9_-]*$": "use lowercase letters, digits, underscores and hyphens; begin with a letter",
    r"^[A-Za-z_][A-Za-z0-9_-]*$": (
        "use letters, digits, underscores and hyphens; begin with a letter or underscore"
    ),
}
"""The cure for a name that does not match its pattern."""
_ONE_VALUE = ("string_type", "int_type", "float_type", "bool_type")


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
        for detail in _without_counts(error.errors(include_url=False)):
            path = (*prefix, *detail["loc"])
            table = _model_at(model, detail["loc"][:-1])
            valid = [*(table.model_fields if table else ()), *(more if len(detail["loc"]) == 1 else ())]
            valid += COMPOSITION_KEYS if len(path) == 1 else ()
            match detail["type"]:
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
                    findings.append(explain_value(_present(path, self.data), detail))
        # A required key that is misspelt is reported once, as the misspelling.
        meant = {(*finding.path[:-1], finding.suggestion) for finding in findings if finding.suggestion}
        return findings + [finding for finding in missing if finding.path not in meant]

    def unknown_key(self, path: KeyPath, valid: Sequence[str]) -> Finding:
        """Returns the finding about a key that its table does not have."""
        key = str(path[-1])
        if found := self.keys.counterpart(path):
            meant = found.key and relative_to(found.key, path)
            return _unknown(
                path, found.cure() if found.note or not meant else f"did you mean `{meant}`?", meant
            )
        suggestion = self.keys.suggest(path, valid)
        settings = [self.keys.counterpart((*path, *leaf)) for leaf in _leaves(_at(self.data, path))]
        if suggestion is None and (cures := [found.cure() for found in settings if found]):
            return _unknown(path, "; ".join(cures))
        if suggestion is None and plain(key).startswith(_LORA):
            cure = "adapters are trained by a table [trainer.lora] with rank, alpha and targets"
            return _unknown(path, cure)
        if suggestion is None:
            return _unknown(path, _takes(path, valid))
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
    places = [detail["loc"] for detail in errors]
    return [
        detail
        for detail in errors
        if detail["type"] != "too_short"
        or not any(place[:-1][: len(detail["loc"])] == detail["loc"] for place in places)
    ]


def _leaves(value: Any) -> Iterator[KeyPath]:
    """Yields the paths of the values inside a table; nothing for another value."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield from ((key, *rest) for rest in _leaves(inner)) if isinstance(inner, Mapping) else [(key,)]


def _takes(path: KeyPath, valid: Sequence[str]) -> str:
    """Returns which keys the table of an unknown key has; of many, those that are spelt most like it."""
    table = f"[{table_name(path[:-1])}]" if len(path) > 1 else "the spec's top level"
    if len(valid) <= MAX_KEYS:
        return f"{table} takes: {', '.join(sorted(valid)) or 'none'}"
    nearby = sorted(sorted(valid), key=lambda key: -likeness(str(path[-1]), key))[:NEARBY_KEYS]
    return f"{table} takes {len(valid)} keys (docs/spec.md); spelt most like it: {', '.join(nearby)}"


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


def explain_value(path: KeyPath, error: Mapping[str, Any]) -> Finding:
    """Returns the finding for one of pydantic's errors about a value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _KINDS:
        message = f"must be {_KINDS[kind]}, found {_described(value)}"
        return Finding(path, message, _conversion(kind, path, value), None, value, code=Code.TYPE)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        message = f"must be {words} {_plain(context[bound])}, found {format_value(value)}"
        return Finding(path, message, found=value, code=Code.RANGE)
    if kind == "literal_error":
        return _not_a_choice(path, context["expected"], value)
    if kind in ("too_long", "too_short"):
        count = context.get("max_length", context.get("min_length"))
        message = f"must have {count} elements, found {context['actual_length']}"
        return Finding(path, message, found=value, code=Code.RANGE)
    if kind == "string_too_short" and value == "":
        cure = "write at least one character, or remove it"
        return Finding(path, "must not be empty", cure, found=value, code=Code.RANGE)
    if kind == "string_pattern_mismatch":
        return _not_of_its_form(path, context["pattern"], value)
    if kind in ("value_error", "assertion_error"):
        return Finding(path, str(context["error"]), found=value, code=Code.FORM)
    message = f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {format_value(value)}"
    return Finding(path, message, found=value, code=Code.FORM)


def _not_of_its_form(path: KeyPath, pattern: str, value: object) -> Finding:
    if cure := _NAMES.get(pattern):
        return Finding(path, f"{format_value(value)} is not a valid name", cure, None, value, code=Code.FORM)
    if "https?://" in pattern:
        cure = "begin it with http:// or https://, and remove spaces"
        return Finding(path, f"{format_value(value)} is not an address", cure, None, value, code=Code.FORM)
    message = f"{format_value(value)} does not fit the pattern {pattern}"
    return Finding(path, message, found=value, code=Code.FORM)


def _plain(bound: float) -> str:
    """Returns a bound as text: whole numbers with all digits, others shortened."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _not_a_choice(path: KeyPath, expected: str, value: object) -> Finding:
    quoted = expected.replace(" or ", ", ").split(", ")  # numbers and booleans have no quotes
    choices = [choice.strip("'") for choice in quoted]
    suggestion = None
    if isinstance(value, str):
        known = OTHER_VALUES.get(value.lower())
        similar = nearest(value, choices) or next((each for each in choices if each in value), None)
        suggestion = known if known in choices else similar
    listed = ", ".join(choice.lower() if choice in _BOOLS else choice.replace("'", '"') for choice in quoted)
    message = f"must be {'one of ' if len(choices) > 1 else ''}{listed}, found {_described(value)}"
    cure = f'did you mean "{suggestion}"?' if suggestion else None
    return Finding(path, message, cure, suggestion, value, code=Code.CHOICE)


def _as_written(kind: str, value: object) -> str:
    if isinstance(value, str) and kind != "string_type":
        return value
    return f"{value:g}" if isinstance(value, float) else format_value(value)


def _described(value: object) -> str:
    """Returns the value, with its type where the value alone would not show what is wrong."""
    kinds: tuple[tuple[type, str], ...] = (
        (dict, "a table"),
        (list, "an array"),
        (str, "the string "),
        (bool, ""),
    )
    for kind, words in kinds:
        if isinstance(value, kind):
            return words if kind in (dict, list) else f"{words}{format_value(value)}"
    return format_value(value)


def _conversion(kind: str, path: KeyPath, value: object) -> str | None:
    """Returns how to write the value that was probably meant."""
    start = f"`{path[-1]} = " if path and isinstance(path[-1], str) else "`"
    if kind == "string_type" and not isinstance(value, (dict, list)):
        return f'write it in quotation marks: {start}"{format_value(value)}"`'
    if kind == "model_type" and isinstance(value, list):
        return f"write one table [{table_name(path)}], not [[{table_name(path)}]]"
    if kind == "tuple_type" and isinstance(value, dict):
        name = table_name(path)
        return (
            f"write [[{name}]] instead of [{name}]: it is an array of tables; with --set: {name}.0.KEY=VALUE"
        )
    if isinstance(value, list) and len(value) == 1 and kind in _ONE_VALUE:
        return f"give one value, without brackets: {start}{_as_written(kind, value[0])}`"
    if kind == "tuple_type":
        return f"write it in brackets: {start}[{format_value(value)}]`"
    if isinstance(value, str) and _reads_as(kind, value):
        return f"leave out the quotation marks: {start}{value.strip().lower()}`"
    if kind in ("int_type", "int_from_float") and isinstance(value, float) and value.is_integer():
        return f"write {start}{int(value)}`"
    if isinstance(value, str) and all(_reads_as(kind, part) for part in value.split(",")):
        return f"give one value; `rlrun sweep launch SPEC --sweep {dotted(path)}={value}` tries each"
    return None


def _reads_as(kind: str, value: str) -> bool:
    if kind == "bool_type":
        return value.strip().lower() in ("true", "false")
    convert: Callable[[str], object] | None = {"int_type": int, "float_type": float}.get(kind)
    try:
        return convert is not None and convert(value) is not None
    except ValueError:
        return False
