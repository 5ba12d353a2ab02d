"""The docstrings that stand under a model's fields, read from its source when someone asks.

pydantic can read them as well, but for every class at import: a good part of the time of `rlrun validate`.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel


@cache
def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What each documented field says of itself, on one line: its description, else the string under it."""
    texts: dict[str, str] = {}
    for ancestor in reversed(model.__mro__):
        if issubclass(ancestor, BaseModel) and ancestor is not BaseModel:
            texts |= _strings_under_fields(ancestor)
    texts |= {name: field.description for name, field in model.model_fields.items() if field.description}
    return {name: " ".join(text.split()) for name, text in texts.items() if name in model.model_fields}


def _strings_under_fields(model: type) -> dict[str, str]:
    """Empty if there is no source to read."""
    try:
        (definition,) = ast.parse(dedent(inspect.getsource(model))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    texts = {}
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = text
    return texts
