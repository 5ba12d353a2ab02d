"""Writes the pages of the documentation that repeat what the code says: `python -m scripts.reference_pages`.

docs/cli.md has every command and option, docs/built-in-plugins.md every plugin, docs/combinations.md what
does not go together, docs/coming-from.md the settings of other trainers, docs/algorithms.md and the README of
packages/rlrun-algorithms the formula of every algorithm. docs/spec.md and docs/spec/ are written by
`rlrun schema --markdown docs`.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import typer
from pydantic.fields import FieldInfo

from rlrun.cli.main import make_app
from rlrun.cli.spec_page import PAGE_OF_KIND
from rlrun.plugins.algorithms.advantages import Comparison
from rlrun.plugins.algorithms.objective import ObjectiveParams
from rlrun.plugins.kinds import METHODS
from rlrun.plugins.registry import PluginEntry, build, entries, load
from rlrun.plugins.types import Needs
from rlrun.specs.derived.conflicts.reading import cure_of
from rlrun.specs.derived.conflicts.row import Kind, Topic, as_tuple
from rlrun.specs.derived.conflicts.table import TOPICS
from rlrun.specs.problems import other_trainers

DOCS = Path(__file__).parents[1] / "docs"
_PACKAGE = "../packages/rlrun-algorithms/README.md"
"""The page of the algorithms of another distribution, from docs/."""
_WRITTEN = "This page is written by `python -m scripts.reference_pages`; do not edit it.\n"
_CLI = f"""\
# The command line

{_WRITTEN}
`--help` after a command prints the same on the console. Exit codes: 0 success, 2 the spec or the command is
wrong, 3 the job failed, 130 interrupted.
"""
_PLUGINS = f"""\
# Built-in plugins

{_WRITTEN}
Each kind is a table of the spec, and `type` names the plugin. The links lead to the keys that a plugin adds
to its table. `rlrun plugins list` also shows plugins of other installed packages, and
[plugins.md](plugins.md) says how to write one.
"""
_COMBINATIONS = f"""\
# What does not go together

{_WRITTEN}
`rlrun validate`, `plan` and `launch` report each of these pairs at the first one's key. What depends on the
model's family is in [families.md](families.md); limits that follow from numbers are in the keys' descriptions
([spec.md](spec.md)).

- **is not supported**: the two exclude each other, or their combination is not implemented.
- **was not tried**: it may work, and was not compared with a reference.
- **has no effect**: the setting is ignored beside the other one, so it is a mistake.
"""

_NEEDS = {
    "group_relative": "`samples_per_prompt` ≥ 2",
    "greedy_reward": "a greedy response to each prompt",
    "reference": "the reference",
    "teacher": "`[teacher]`",
    "critic": "`[critic]`",
    "reads_pairs": "`data.rejected_key`",
    "labels": "`data.label_key`",
    "policy_log_probs": "the policy's log-probs on the driver",
    "trainer_log_probs": "log-probs of trainer and engine",
}
"""What an algorithm needs, by the names of its needs."""
_TRAINERS = {"verl": "verl", "TRL": "TRL (GRPOTrainer)", "prime-rl": "prime-rl"}
"""The heads of the tables of docs/coming-from.md, by the titles of their sections."""


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")


def pages() -> dict[str, str]:
    """Returns the text of each page by its path from docs/."""
    commands = _commands("rlrun", typer.main.get_command(make_app([])), {})
    return {
        "cli.md": "\n".join([_CLI, *commands]),
        "built-in-plugins.md": "\n".join([_PLUGINS, *(_kind(kind) for kind in METHODS)]),
        "combinations.md": "\n".join([_COMBINATIONS, *_at_a_glance(), *(_topic(topic) for topic in TOPICS)]),
        "algorithms.md": _with_algorithms("algorithms.md", "rlrun"),
        _PACKAGE: _with_algorithms(_PACKAGE, "rlrun-algorithms"),
        "coming-from.md": _with_counterparts((DOCS / "coming-from.md").read_text("utf-8")),
    }


def _with_algorithms(name: str, distribution: str) -> str:
    """Returns a page with the table of a distribution's algorithms as they are now."""
    page = (DOCS / name).read_text("utf-8")
    own = [entry for entry in entries("algorithms") if entry.distribution == distribution]
    head = "| `type` | paper | advantage | loss of a token | keys of its own | needs | has no |"
    table = "\n".join([head, "| --- | --- | --- | --- | --- | --- | --- |", *map(_algorithm, own)])
    return re.sub(r"(\| `type` \|.* advantage .*\n)(\|.*\n)+", lambda _: f"{table}\n", page, count=1)


def _algorithm(entry: PluginEntry) -> str:
    """Returns the row of an algorithm: its formulas, defaults, needs and the shared terms that it lacks."""
    plugin = load(entry.kind, entry.name)
    needs: Needs = build(entry.kind, entry.name, {}).needs
    fields = plugin.Params.model_fields
    own = (
        f"`{name}{_default(field.default)}`"
        for name, field in fields.items()
        if name not in ObjectiveParams.model_fields and name not in Comparison.model_fields
    )
    wanted = (text for flag, text in _NEEDS.items() if getattr(needs, flag))
    lacks = (
        f"`{name}`" for name in ObjectiveParams.model_fields if needs.rollout and _is_absent(fields.get(name))
    )
    is_built_in = entry.distribution == "rlrun"
    shown_name = (
        f"[`{entry.name}`](spec/algorithm.md#algorithms-{entry.name})" if is_built_in else f"`{entry.name}`"
    )
    paper = re.search(r"https://arxiv.org/abs/([\d.]+\d)", sys.modules[plugin.__module__].__doc__ or "")
    shown = f"[{paper[1]}]({paper[0]})" if paper else ""
    cells = (
        shown_name,
        shown,
        plugin.advantage_formula,
        plugin.loss_formula,
        *map(", ".join, (own, wanted, lacks)),
    )
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _is_absent(field: FieldInfo | None) -> bool:
    """Returns whether an algorithm has no such key, or only accepts that it is not set."""
    return field is None or field.annotation is NoneType


def _default(value: object) -> str:
    """Returns ` = value` as a spec would write it; nothing for a key that is not set by default."""
    return "" if value is None else f" = {json.dumps(value)}"


def _at_a_glance() -> Iterator[str]:
    """Yields a table of the features that several others exclude."""
    others: dict[str, dict[str, None]] = {}
    for row in (row for topic in TOPICS for row in topic.rows if row.kind is not Kind.NO_EFFECT):
        for feature, other in row.pairs():
            if not other.is_absence:
                others.setdefault(feature.name, {})[other.name] = None
                others.setdefault(other.name, {})[feature.name] = None
    yield "\n".join(["## At a glance", "", "| | is not supported, or was not tried, with |", "| --- | --- |"])
    for name, names in others.items():
        if len(names) > 1:
            yield f"| {_shown(name)} | {', '.join(map(_shown, names))} |"
    yield ""


def _topic(topic: Topic) -> str:
    """Returns the section of a topic of the table."""
    lines = [f"## {topic.title}", "", "| | | | why | what to do |", "| --- | --- | --- | --- | --- |"]
    for row in topic.rows:
        features = as_tuple(row.features)
        names = ", ".join(_shown(feature.name) for feature in features)
        reason = row.reason.replace("{algorithm}", "the algorithm")
        others: dict[tuple[str, str], list[str]] = {}
        for other in as_tuple(row.others):
            link = "without" if other.is_absence else "with"
            cures = dict.fromkeys(cure_of(row, feature, other, other.key) for feature in features)
            others.setdefault((link, "; ".join(cures)), []).append(_shown(other.name))
        for (link, cure), shown in others.items():
            cells = (names, f"{row.kind} {link}", ", ".join(shown), reason, cure)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _with_counterparts(page: str) -> str:
    """Returns the page with the tables of other trainers' settings as they are now."""
    for trainer, head in _TRAINERS.items():
        lines = [f"| {head} | rlrun | |", "| --- | --- | --- |"]
        lines += (f"| {row.theirs} | {row.ours} | {row.note} |" for row in other_trainers.rows()[trainer])
        table = "\n".join(lines).replace("|  |", "| |")
        page = re.sub(
            rf"(?<=\n## {trainer}\n\n)(\|.*\n)+", lambda _, table=table: f"{table}\n", page, count=1
        )
    return page


def _shown(name: str) -> str:
    """Returns a name as code if it is a key, with or without a value."""
    return f"`{name}`" if re.fullmatch(r"\[?[a-z_]+(\.[a-z_]+)*\]?( [=>] \S+)?", name) else name


def _commands(name: str, command: Any, known: dict[str, str]) -> Iterator[str]:
    """Yields the section of a command, then those of its sub-commands.

    `known` maps a table to the first command that has it: commands of `rlrun convert` share theirs.
    """
    context = typer.Context(command)
    rows = [record for each in command.params if (record := _record(each, context))]
    table = "\n".join(["| argument or option | |", "| --- | --- |", *rows]) if rows else ""
    if len(rows) > 1 and table in known:
        table = f"Takes the arguments and options of `{known[table]}`."
    known.setdefault(table, name)
    about = (" ".join(paragraph.split()) for paragraph in str(command.help).split("\n\n"))
    yield "\n\n".join(filter(None, [f"## `{name}`", *about, table])) + "\n"
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", inner, known)


def _record(parameter: Any, context: typer.Context) -> str:
    """Returns the row of an argument or an option; an empty string if it is hidden."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    names, about = (" ".join(text.split()).replace("|", "\\|") for text in record)
    return f"| `{names}` | {about} |"


def _kind(kind: str) -> str:
    """Returns the section of one kind of plugin."""
    own = [entry for entry in entries(kind) if entry.distribution == "rlrun"]
    if not own:
        return f"## {kind}\n\nrlrun has none of its own; [plugins.md](plugins.md) shows how to write one.\n"
    modules = Counter(entry.target.partition(":")[0] for entry in own)
    page = f"spec/{PAGE_OF_KIND[kind]}.md"
    rows = [f"| [`{entry.name}`]({page}#{kind}-{entry.name}) | {_about(entry, modules)} |" for entry in own]
    return "\n".join([f"## {kind}", "", "| `type` | |", "| --- | --- |", *rows, ""])


def _about(entry: PluginEntry, modules: Counter[str]) -> str:
    """Returns the module's first paragraph; if the module has several plugins, the class's first sentence."""
    plugin = load(entry.kind, entry.name)
    module = entry.target.partition(":")[0]
    if modules[module] > 1:
        about = (plugin.__doc__ or "").partition(". ")[0].removesuffix(".") + "."
    else:
        about = (sys.modules[module].__doc__ or "").partition("\n\n")[0]
    return re.sub(r"https://[^\s,)]+", r"<\g<0>>", " ".join(about.split()))


if __name__ == "__main__":
    main()
