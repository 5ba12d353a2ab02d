"""`docs/spec.md`: every section, key and built-in plugin, written from the models themselves."""

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

Written by `rlrun schema --markdown` from the models that check a spec; do not edit.

A spec is one TOML file (or several, later ones on top), strict: a key that is not listed here is an error.
`extends = ["base.toml"]` starts from other files: tables merge key by key, anything else is replaced, and a
table whose `type` changes is replaced as a whole. Paths are relative to the file that sets them; `package:`
starts a path to a file that rlrun ships.

Later wins: what a file extends, the file, further files, `--profile NAME` (the table `[profiles.NAME]`,
which holds any keys of a spec), `--set key.path=value`. `rlrun validate SPEC --explain KEY` says which of
them set a key.

In a string, `${env:NAME}` refers to a secret, which is looked up when it is used and written nowhere, and
`${var:NAME}` to a value under `[vars]`; `${var:NAME=default}` needs no such value. A string that is nothing
but one variable takes its type: `batch_size = "${var:size}"`. A literal where a secret belongs (`api_key`, a
header such as Authorization, a password in a URL) is an error, and text that looks like a key is a warning.
`--set` is visible to every user of the host in `ps`: set references there, no secrets.
"""
_ARRAYS: dict[str, type[BaseModel]] = {
    "[[rewards]]": RewardSpec,
    "[[filters]]": FilterSpec,
    "[[eval.datasets]]": EvalDatasetSpec,
    "[[trackers]]": TrackerSpec,
}


def spec_markdown() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_sections(), *_plugins()])


def _sections() -> Iterator[str]:
    tables = {name: next(section_models(field.annotation), None) for name, field in Spec.model_fields.items()}
    top = [each for each in list_settings(Spec) if tables.get(each.name.partition(".")[0]) is None]
    yield _section("## Before the first table", Spec, top)
    for name, model in tables.items():
        if model is not None and f"[[{name}]]" not in _ARRAYS:
            settings = [each for each in list_settings(model) if f"[[{name}.{each.name}]]" not in _ARRAYS]
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
    rows = [f"| `{each.name}` | {each.type} | {_code(each.default)} | {each.about} |" for each in settings]
    table = ["| key | value | default | |", "|---|---|---|---|", *rows] if rows else ["No parameters."]
    about = " ".join((model.__doc__ or "").split())
    return "\n".join([title, "", about, "", *table, ""])


def _code(default: str) -> str:
    return default if default in ("required", "unset") else f"`{default}`"
