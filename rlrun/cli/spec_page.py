"""Writes docs/spec.md and docs/spec/: every section, key and plugin, from the models that check a spec."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from rlrun.plugins.kinds import METHODS
from rlrun.plugins.registry import entries, load
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.reading.reference import Setting, list_settings
from rlrun.specs.sections.engine import EngineGroupSpec
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section

_INTRODUCTION = """\
# The spec

This page and those of the sections are written by `rlrun schema --markdown` from the models that check a
spec; do not edit them.

A spec is one TOML file, or several, of which later ones override earlier ones. A key that is not listed here
is an error. `extends = ["base.toml"]` starts from other files: tables are merged key by key, other
values are replaced, and a table whose `type` changes is replaced as a whole. `false` removes a table, or an
array of tables, of these files: `lora = false` under `[trainer]`. Paths are relative to the file that sets
them; `package:` begins the path of a file that ships with rlrun.

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
_OF_A_SECTION = "A section of [the spec](../spec.md), written by `rlrun schema --markdown`; do not edit it.\n"
_INNER_ARRAYS: dict[str, tuple[str, type[Section]]] = {
    "eval": ("datasets", EvalDatasetSpec),
    "engine": ("groups", EngineGroupSpec),
}
"""The arrays of tables inside a section, which have a table of their own on its page."""
PAGE_OF_KIND = {
    "algorithms": "algorithm",
    "data": "data",
    "rewards": "rewards",
    "filters": "filters",
    "rollouts": "rollout",
    "buffers": "rollout",
    "tools": "rollout",
    "agents": "rollout",
    "environments": "data",
    "hooks": "hooks",
    "trackers": "trackers",
    "launchers": "submit",
}
"""The section whose page has the parameters of a kind of plugins."""


def write_spec_pages(docs: Path) -> None:
    """Writes every page below the folder `docs`, in place of older ones."""
    for name, text in spec_pages().items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def spec_pages() -> dict[str, str]:
    """Returns the text of each page by its path: the index, then a page for each section."""
    models = {name: next(section_models(field.annotation), None) for name, field in Spec.model_fields.items()}
    sections = {name: model for name, model in models.items() if model is not None}
    pages = {f"spec/{name}.md": _page(name, model) for name, model in sections.items()}
    return {"spec.md": _index(sections)} | pages


def _index(sections: dict[str, type[BaseModel]]) -> str:
    """Returns the page that leads to the sections, with the keys before the first table."""
    top = [item for item in list_settings(Spec) if item.name.partition(".")[0] not in sections]
    items = [f"- [{name}](spec/{name}.md): {_about(model)}" for name, model in sections.items()]
    listed = "\n".join(["## Sections", "", *items, ""])
    return "\n".join([_INTRODUCTION, _section("## Before the first table", Spec, top), listed])


def _page(name: str, model: type[BaseModel]) -> str:
    """Returns the page of one section, with the built-in plugins that its `type` names."""
    title = f"[[{name}]]" if str(Spec.model_fields[name].annotation).startswith("tuple[") else f"[{name}]"
    key, inner = _INNER_ARRAYS.get(name, ("", None))
    settings = [item for item in list_settings(model) if item.name != key]
    parts = [f"# `{title}`\n\n{_OF_A_SECTION}\n{_table(model, settings)}"]
    if inner is not None:
        parts.append(_section(f"## `[[{name}.{key}]]`", inner, list_settings(inner)))
    plugins = [section for kind in METHODS if PAGE_OF_KIND[kind] == name for section in _plugins(kind)]
    if plugins:
        parts.append("## Built-in plugins\n\nTheir parameters are further keys beside `type`.\n")
    return "\n".join([*parts, *plugins])


def _plugins(kind: str) -> Iterator[str]:
    """Yields the section of each built-in plugin of a kind."""
    for entry in entries(kind):
        if entry.distribution == "rlrun":
            plugin = load(kind, entry.name)
            yield _section(f"### {kind}: `{entry.name}`", plugin, list_settings(plugin.Params))


def _section(title: str, model: type, settings: list[Setting]) -> str:
    return f"{title}\n\n{_table(model, settings)}"


def _table(model: type, settings: list[Setting]) -> str:
    rows = [f"| `{row.name}` | {row.type} | {_code(row.default)} | {row.about} |" for row in settings]
    table = ["| key | value | default | |", "|---|---|---|---|", *rows] if rows else ["No parameters."]
    return "\n".join([_about(model), "", *table, ""])


def _about(model: type) -> str:
    return " ".join((model.__doc__ or "").split())


def _code(default: str) -> str:
    return default if default in ("required", "unset", "derived") else f"`{default}`"
