"""Writes `docs/spec.md`, every section, key and built-in plugin, from the models that check a spec."""

from collections.abc import Iterator

from pydantic import BaseModel

from rlrun.plugins.kinds import METHODS
from rlrun.plugins.registry import entries, load
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.reading.reference import Setting, list_settings
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import Spec, TrackerSpec
from rlrun.specs.sections.scoring import FilterSpec, RewardSpec

_INTRODUCTION = """\
# The spec

This page is written by `rlrun schema --markdown` from the models that check a spec; do not edit it.

A spec is one TOML file, or several, of which later ones override earlier ones. A key that is not listed here
is an error. `extends = ["base.toml"]` starts from other files: tables are merged key by key, other
values are replaced, and a table whose `type` changes is replaced as a whole. Paths are relative to the file
that sets them; `package:` begins the path of a file that ships with rlrun.

Values are taken from these sources, and later ones override earlier ones: the files that a file extends, the
file, further files, `--profile NAME` (the table `[profiles.NAME]`, which holds any keys of a spec), and
`--set key.path=value`. `rlrun validate SPEC --explain KEY` shows which of them set a key.

In a string, `${env:NAME}` refers to a secret, which is looked up when it is used and is never written to a
file, and `${var:NAME}` to a value under `[vars]`; `${var:NAME=default}` also works without such a value. A
string that consists of one variable takes the variable's type: `batch_size = "${var:size}"`. A literal where
a secret belongs (`api_key`, a header such as Authorization, a password in a URL) is an error, and text that
looks like a key is a warning. Every user of the host sees the values of `--set` in `ps`: set references to
secrets there, not the secrets.
"""
_ARRAYS: dict[str, type[BaseModel]] = {
    "[[rewards]]": RewardSpec,
    "[[filters]]": FilterSpec,
    "[[eval.datasets]]": EvalDatasetSpec,
    "[[trackers]]": TrackerSpec,
}


def spec_markdown() -> str:
    """Returns the whole page."""
    return "\n".join([_INTRODUCTION, *_sections(), *_plugins()])


def _sections() -> Iterator[str]:
    tables = {name: next(section_models(field.annotation), None) for name, field in Spec.model_fields.items()}
    top = [setting for setting in list_settings(Spec) if tables.get(setting.name.partition(".")[0]) is None]
    yield _section("## Before the first table", Spec, top)
    for name, model in tables.items():
        if model is not None and f"[[{name}]]" not in _ARRAYS:
            settings = [item for item in list_settings(model) if f"[[{name}.{item.name}]]" not in _ARRAYS]
            yield _section(f"## `[{name}]`", model, settings)
    for title, model in _ARRAYS.items():
        yield _section(f"## `{title}`", model, list_settings(model))


def _plugins() -> Iterator[str]:
    yield "## Built-in plugins\n\nTheir parameters are further keys beside `type`.\n"
    for kind in METHODS:
        for entry in entries(kind):
            if entry.distribution == "rlrun":
                plugin = load(kind, entry.name)
                yield _section(f"### {kind}: `{entry.name}`", plugin, list_settings(plugin.Params))


def _section(title: str, model: type, settings: list[Setting]) -> str:
    rows = [f"| `{row.name}` | {row.type} | {_code(row.default)} | {row.about} |" for row in settings]
    table = ["| key | value | default | |", "|---|---|---|---|", *rows] if rows else ["No parameters."]
    about = " ".join((model.__doc__ or "").split())
    return "\n".join([title, "", about, "", *table, ""])


def _code(default: str) -> str:
    return default if default in ("required", "unset") else f"`{default}`"
