"""`rlrun schema`: the spec's shape, for editors and for the documentation."""

import json
from typing import Annotated, Any

import typer

_KINDS = {
    "AlgorithmSpec": "algorithms",
    "DataSpec": "data",
    "EvalDatasetSpec": "data",
    "RewardSpec": "rewards",
    "FilterSpec": "filters",
    "TrackerSpec": "trackers",
}


def command(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The page docs/spec.md instead, with the built-in plugins.")
    ] = False,
) -> None:
    """Print the JSON Schema of a spec: completion and checks in editors that know TOML."""
    if markdown:
        from rlrun.cli.reference import spec_markdown

        print(spec_markdown(), end="")
    else:
        print(json.dumps(spec_schema(), indent=2))


def spec_schema() -> dict[str, Any]:
    """The schema, with the names of the installed plugins for each `type`."""
    from rlrun.plugins.registry import names
    from rlrun.specs.docstrings import field_docstrings
    from rlrun.specs.job import Spec
    from rlrun.specs.suggestions import all_models

    schema = Spec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["extends"] = {
        "description": "Files to start from; this one is laid on top of them.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"]["vars"] = {
        "description": "Values that strings of the spec refer to as ${var:NAME}.",
        "type": "object",
    }
    schema["properties"]["profiles"] = {
        "description": "Variants of the job: tables laid on top by --profile NAME.",
        "type": "object",
        "additionalProperties": {"type": "object"},
    }
    for model in all_models(Spec):
        properties = (schema if model is Spec else schema["$defs"][model.__name__])["properties"]
        for key, about in field_docstrings(model).items():
            properties[key]["description"] = about
    for definition, kind in _KINDS.items():
        schema["$defs"][definition]["properties"]["type"]["enum"] = names(kind)
    return schema
