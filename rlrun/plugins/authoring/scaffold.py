"""Writes the package of a new plugin, with its tests: the command `rlrun plugins new`."""

import keyword
import re
from pathlib import Path
from textwrap import dedent, indent

from rlrun.plugins.authoring.templates import TEMPLATES
from rlrun.plugins.registry import entries

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "{about}"
requires-python = ">=3.11"
dependencies = ["rlrun"]

[project.entry-points."rlrun.{kind}"]
{name} = "{module}:{class_name}"

[tool.setuptools]
py-modules = ["{module}"]
"""
_MODULE = '''\
"""{about}"""

{imports}
from pydantic import BaseModel, ConfigDict, Field


class {class_name}Params(BaseModel):
    """The plugin's keys in a spec, next to `type = "{name}"`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    limit: int = Field(default=3, ge=1)
    {parameter}


class {class_name}:
    """{about}"""

    Params = {class_name}Params
    api_version = 1

    def __init__(self, params: {class_name}Params) -> None:
        self.params = params

{methods}'''
_TEST = '''\
"""Checks the contract of this kind of plugin. Install the package, then run pytest."""

from rlrun.plugins.testing import check_plugin


def test_contract() -> None:
    check_plugin("{kind}", "{name}")
'''
_README = """\
# {package}

{about}

```
pip install -e .
rlrun plugins check {package}
pytest
```
"""


def write_package(kind: str, name: str, parent: Path) -> Path:
    """Writes the package's folder under `parent` and returns it.

    Raises ValueError for an invalid name, a name in use, or a folder that exists.
    """
    template = TEMPLATES[kind]
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a valid plugin name: use a-z, digits and underscores")
    if namesake := next((entry for entry in entries(kind) if entry.name == name), None):
        raise ValueError(f"{namesake} has that name, and a spec could use neither of the two: choose another")
    package = f"rlrun-{template.noun}-{name.replace('_', '-')}"
    folder = parent / package
    if folder.exists():
        raise ValueError(f"{folder} exists already: choose another name, or move it away")
    fields = {
        "kind": kind,
        "name": name,
        "package": package,
        "module": package.replace("-", "_"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "about": template.about,
        "imports": template.imports,
        "parameter": template.parameter,
        "methods": indent(dedent(template.methods).strip().replace("NAME", name), "    ") + "\n",
    }
    files = {
        "pyproject.toml": _PYPROJECT,
        f"{fields['module']}.py": _MODULE,
        f"test_{name}.py": _TEST,
        "README.md": _README,
    }
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text.format(**fields))
    return folder
