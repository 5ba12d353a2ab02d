"""`rlrun schema`: prints the JSON Schema of a spec for editors, or writes the pages of docs/spec.md."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

_KINDS = {
    "AlgorithmSpec": "algorithms",
    "DataSpec": "data",
    "EvalDatasetSpec": "data",
    "RolloutFunctionSpec": "rollouts",
    "BufferSpec": "buffers",
    "RewardSpec": "rewards",
    "FilterSpec": "filters",
    "HookSpec": "hooks",
    "TrackerSpec": "trackers",
    "ToolSpec": "tools",
    "AgentSpec": "agents",
    "EnvironmentSpec": "environments",
    "SubmitSpec": "launchers",
}


SCHEMA_FILE = "rlrun.schema.json"
"""Name of the schema beside a spec, which the line `#:schema ./rlrun.schema.json` of the spec names."""


def command(
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown",
            metavar="FOLDER",
            help="Write the pages of docs/spec.md below this folder instead, with the built-in plugins.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the schema to this file, in place of an older one."),
    ] = None,
) -> None:
    """Print the JSON Schema of a spec, for editors.

    Editors with support for TOML complete and check specs with it, for instance one that begins with the line
    #:schema ./rlrun.schema.json (docs/first-job.md).
    """
    if output is not None:
        write_schema(output)
    elif markdown is not None:
        from rlrun.cli.spec_page import write_spec_pages

        write_spec_pages(markdown)
    else:
        print(json.dumps(spec_schema(), indent=2))


def write_schema(path: Path) -> None:
    """Writes the schema, with the plugins that are installed, in place of an older one."""
    path.write_text(json.dumps(spec_schema()) + "\n", encoding="utf-8")


def spec_schema() -> dict[str, Any]:
    """Returns the schema, with the installed plugins for each `type` and their parameters."""
    from rlrun.plugins.registry import names
    from rlrun.specs.problems.suggestions import all_models
    from rlrun.specs.sections.job import Spec

    schema = Spec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    del schema["required"]  # a file may leave required keys to the files that it extends
    schema["properties"]["extends"] = {
        "description": "Files to start from; the values in this file override theirs.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"]["vars"] = {
        "description": "Values that strings in the spec refer to as ${var:NAME}.",
        "type": "object",
    }
    schema["properties"]["profiles"] = {
        "description": "Variants of the job: --profile NAME applies the table of that name on top.",
        "type": "object",
        "additionalProperties": {"type": "object"},
    }
    for model in all_models(Spec):
        shape = schema if model is Spec else schema["$defs"][model.__name__]
        _add_descriptions(shape, model)
        if model is not Spec:
            _allow_false(shape)
    for definition, kind in _KINDS.items():
        table = schema["$defs"][definition]
        table["properties"]["type"]["enum"] = names(kind)
        table["allOf"] = [_plugin_keys(kind, name, schema["$defs"]) for name in names(kind)]
    return schema


def _plugin_keys(kind: str, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a table with this `type`, and adds their inner tables to `definitions`."""
    from rlrun.plugins.registry import load
    from rlrun.specs.problems.suggestions import all_models

    params = load(kind, name).Params
    shape = params.model_json_schema()
    inner_definitions = shape.pop("$defs", {})
    for model in all_models(params):
        _add_descriptions(shape if model is params else inner_definitions[model.__name__], model)
    definitions |= inner_definitions
    chosen = {"properties": {"type": {"const": name}}, "required": ["type"]}
    return {"if": chosen, "then": {key: shape[key] for key in ("properties", "required") if key in shape}}


def _add_descriptions(shape: dict[str, Any], model: type["BaseModel"]) -> None:
    """Adds the docstrings of a model's fields, and the defaults that a factory makes, to its schema."""
    from rlrun.specs.problems.docstrings import field_docstrings
    from rlrun.specs.reading.removed_tables import is_table
    from rlrun.specs.sections.section import is_derived

    for key, about in field_docstrings(model).items():
        shape["properties"][key]["description"] = about
    for key, field in model.model_fields.items():
        if is_table(field.annotation) and shape["properties"][key].get("type") in ("array", "object"):
            _allow_false(shape["properties"][key])
        if field.default_factory is not None and not is_derived(field):
            shape["properties"][key]["default"] = field.get_default(call_default_factory=True)


def _allow_false(shape: dict[str, Any]) -> None:
    """Allows `false` in place of a table, which removes the table of a file that a spec extends.

    Not by anyOf, because editors would then no longer say what is wrong inside the table.
    """
    shape |= {"type": [shape["type"], "boolean"], "not": {"const": True}}
