"""Makes the JSON schema of a tool from a pydantic model of its arguments."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from rlrun.specs.problems.docstrings import field_docstrings


def function_schema(name: str, about: str, arguments: type[BaseModel]) -> dict[str, Any]:
    """Returns a tool's schema for chat templates: `{"type": "function", "function": {name, description, …}}`.

    The docstrings of the model's fields become the descriptions of the arguments.
    """
    shape = arguments.model_json_schema()
    described = field_docstrings(arguments)
    properties = {
        key: {field: value for field, value in argument.items() if field != "title"}
        | ({"description": described[key]} if key in described else {})
        for key, argument in shape["properties"].items()
    }
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": shape.get("required", []),
    }
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
