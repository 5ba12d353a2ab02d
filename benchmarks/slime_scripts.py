"""Imports every launch script of slime's main branch and writes docs/slime.md.

    python benchmarks/slime_scripts.py

    tests/data/slime_scripts.toml (their arguments) -> `rlrun import slime` -> `rlrun validate` -> a table

Models are stubs: a config.json of the family without weights. The paths in each spec are replaced by those of
the stubs; everything else is as imported.
"""

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet
import tomli

from rlrun.converters.shell.script import Word
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import flag_table, table_markdown
from rlrun.converters.slime.importer import import_command
from rlrun.converters.slime.rollouts_flags import DEFAULT_ROLLOUT, SFT_ROLLOUT
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.preflight import check_files
from rlrun.specs.problems.findings import SpecError

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "data" / "slime_scripts.toml"
PAGE = ROOT / "docs" / "slime.md"
ROW: dict[str, Any] = {
    **dict.fromkeys(("prompt", "problem", "input", "index"), "What is 1 + 1?"),
    **dict.fromkeys(("label", "answer", "reward_model"), "2"),
    "messages": [{"role": "user", "content": "1 + 1?"}],
}
"""A row with every column that the scripts name."""
CHAT = {**ROW, "messages": [*ROW["messages"], {"role": "assistant", "content": "2"}]}
"""The same row for scripts that train on the answer."""
FUNCTIONS = (
    "--custom-generate-function-path",
    "--custom-rm-path",
    "--rollout-function-path",
    "--rollout-buffer-url",
)
"""Flags whose function the user has to provide, or that have no equivalent."""
OF_FAMILY = "model_type "
"""The messages about a model's family begin with this."""
INTRODUCTION = """\
## slime's own scripts

This table shows the 46 scripts of slime's main branch (August 2026) that start training. Each was imported,
and validated with a stub of its model (a config.json of the family and a tokenizer, without weights) and one
row of data. `keys` counts the script's flags that became keys of the spec, `reasons` those that the importer
explains in a message; a flag can count for both. `spec` is the verdict of `rlrun validate` on spec and data.
`family` is the model's `model_type`, refused if the trainer does not support it. The table is generated
by `benchmarks/slime_scripts.py`.

| script | keys | reasons | spec | family | left to you |
|---|---|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class SlimeScript:
    """One script's training command, evaluated."""

    path: str
    command: list[Word]
    config: Mapping[str, Any]
    """The config.json of its model."""
    files: Mapping[str, str]
    """The text of each settings file that a flag names, by path."""

    def draft(self) -> Draft:
        """Returns the importer's draft of the spec."""
        stem = Path(self.path).stem
        return import_command(Path(self.path).name, stem, self.command, (), self.files.get)


@cache
def slime_scripts() -> tuple[SlimeScript, ...]:
    """Returns all scripts, in the order of their paths."""
    fixture = tomli.loads(FIXTURE.read_text("utf-8"))
    models = fixture["models"]
    return tuple(
        SlimeScript(
            each["path"],
            list(_words(each, models[each["model"]]["flags"])),
            models[each["model"]]["config"],
            each.get("files", {}),
        )
        for each in fixture["scripts"]
    )


def problems(path: str) -> tuple[str, ...]:
    """Returns the problems of a script's spec, except that its family is not supported."""
    return tuple(each for each in _all_problems(path) if not each.startswith(OF_FAMILY))


def family_problem(script: SlimeScript) -> str | None:
    """Returns the problem with the family of the script's model; None if the trainer supports it."""
    return next((each for each in _all_problems(script.path) if each.startswith(OF_FAMILY)), None)


@cache
def _all_problems(path: str) -> tuple[str, ...]:
    """Returns what `rlrun validate` reports for the spec of the script at `path`, with stubs."""
    script = next(each for each in slime_scripts() if each.path == path)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_files(load_checked_spec([write_spec(script, Path(folder))]))
        except SpecError as error:
            return tuple(each.message for each in error.problems)
    return ()


def write_spec(script: SlimeScript, folder: Path) -> Path:
    """Writes the spec of a script, with stubs beside it, and returns its path."""
    draft = script.draft()
    _use_stubs(draft, script.config, folder)
    file = folder / "job.toml"
    file.write_text(draft.toml(), "utf-8")
    return file


def page() -> str:
    """Returns the text of docs/slime.md."""
    rows = [_row(script) for script in slime_scripts()]
    return "\n".join([table_markdown(), INTRODUCTION, *rows, ""])


def _row(script: SlimeScript) -> str:
    draft = script.draft()
    commented = " ".join(draft.comments.values()).replace(",", " ").split()
    keys = sum(name in commented for name in draft.flags)
    noted = {flag.name for flag, _ in draft.setting_notes}
    reasons = sum(name in noted for name in draft.flags)
    found = problems(script.path)
    verdict = "valid" if not found else f"refused: {'; '.join(found)}"
    family = f"`{script.config['model_type']}`" + (": refused" if family_problem(script) else "")
    return f"| `{script.path}` | {keys} | {reasons} | {verdict} | {family} | {_left(draft)} |"


def _left(draft: Draft) -> str:
    """Returns a list of the things that the user has to provide."""
    own = [flag for flag, text in draft.setting_notes if text not in (DEFAULT_ROLLOUT, SFT_ROLLOUT)]
    parts = [f"`{flag.name}`" for flag in draft.given(*FUNCTIONS) if flag in own]
    parts += sorted({f"`[vars]` {note.split()[0]}" for note in draft.notes if "under [vars]" in note})
    if "is quantised" in draft.comments.get("model.path", ""):
        parts.append("the model in bfloat16")
    if any("Megatron refuses" in note for note in draft.notes):
        parts.append("a layout that Megatron accepts")
    if "trainer.warmup_steps" in str(draft.setting_notes):
        parts.append("`trainer.warmup_steps`")
    return ", ".join(parts)


def _words(script: Mapping[str, Any], architecture: str) -> Iterator[Word]:
    yield Word(script["program"], script["path"])
    name = Path(script["path"]).name
    yield from (Word(word, name) for word in shlex.split(f"{architecture} {script['flags']}"))


def _use_stubs(draft: Draft, config: Mapping[str, Any], folder: Path) -> None:
    """Replaces every path of the spec by the path of a stub."""
    values = draft.values
    model = _model(folder / "model", config)
    values["model"]["path"] = model
    if "path" in values.get("teacher", {}):
        values["teacher"]["path"] = model
    if "model" in values.get("engine", {}):
        values["engine"]["model"] = _model(folder / "served", {**config, "quantization_config": {}})
    for section in (values["data"], *values.get("eval", {}).get("datasets", [])):
        row = CHAT if draft.algorithm == "sft" else ROW
        section["path"] = _rows(folder, section.get("type", "jsonl"), row)


def _model(folder: Path, config: Mapping[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}', "utf-8")
    return str(folder)


def _rows(folder: Path, kind: str, row: Mapping[str, Any]) -> str:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row)] * 2), path)
    else:
        path.write_text(f"{json.dumps(row)}\n" * 2, "utf-8")
    return str(path)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(slime_scripts())} scripts, {len(flag_table())} flags")
