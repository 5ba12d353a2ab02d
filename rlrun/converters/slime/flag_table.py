"""slime's flags and what each is here, from flags.toml; docs/slime.md shows them as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli

_FILE = Path(__file__).parent / "flags.toml"
_INTRODUCTION = """\
# From slime

Written by `benchmarks/slime_scripts.py` from the table that the importer goes by; do not edit.

`rlrun import slime run.sh -o job.toml` reads a launch script, with the files it sources, and writes a spec.
The script is read and never executed: variables, conditions, loops, functions and arithmetic are followed,
and the output of harmless programs (`seq`, `dirname`, `echo`) is worked out. In the spec each key carries the
flag it came from as a comment; every flag that has no equal, or that needs a decision, is a line on standard
error.

What differs beyond names:

- There is nothing to convert: weights are read from the Hugging Face folder, and the architecture from its
  config.json. All `MODEL_ARGS` go. A quantised `--hf-checkpoint` is for the servers (`engine.model`), beside
  the bfloat16 model that is trained (`model.path`).
- Variables that a script takes from its environment become variables of the spec: `${BASE_DIR}` is
  `${var:BASE_DIR}`, which `[vars]` or `--set vars.BASE_DIR=/data` sets. The environment is not read.
- slime's defaults are written out where they differ: weight decay, Adam's betas, the schedule, every
  checkpoint kept, hours for a request, no limit on prompts.
- Keys and passwords are never copied: they are left out, or refer to the environment as `${env:NAME}`.
- An unknown key is an error, and so is an option that would have no effect.
- The batch equation is checked when the spec is, with the nearest numbers that would fit.
"""
_SGLANG = """\
## SGLang

Other flags that begin with `--sglang-` are arguments of the SGLang server: `--sglang-mem-fraction-static` is
`engine.sglang.mem_fraction_static`, and so on, but for those that rlrun sets itself; the importer says which.
In the same way `--router-policy` is `engine.sglang_router.policy`, and such a flag sets `engine.router`;
without one rlrun routes by itself.
"""


@dataclass(frozen=True, slots=True)
class FlagRow:
    """One flag; the fields are told in flags.toml."""

    group: str
    name: str
    """With its hyphens: `--lr`."""
    type: str
    key: str | None = None
    value: Any = None
    default: Any = None
    values: Mapping[str, str] = field(default_factory=dict)
    rule: str | None = None
    of: tuple[str, ...] = ()
    about: str = ""
    why: str = ""
    origin: str = "slime"
    older: bool = False


@cache
def flag_table() -> dict[str, FlagRow]:
    """Every known flag by name."""
    with _FILE.open("rb") as file:
        groups = tomli.load(file)
    rows = {}
    for group, flags in groups.items():
        for name, fields in flags.items():
            origin, of = fields.pop("from", "slime"), tuple(fields.pop("of", ()))
            rows[f"--{name}"] = FlagRow(group, f"--{name}", origin=origin, of=of, **fields)
    return rows


def table_markdown() -> str:
    """The part of docs/slime.md about flags."""
    parts = [_INTRODUCTION]
    rows = flag_table().values()
    for group in dict.fromkeys(row.group for row in rows):
        parts.append(f"## {group}\n\n| flag | key | |\n|---|---|---|")
        parts += [_line(row) for row in rows if row.group == group]
        parts.append("")
    parts.append(_SGLANG)
    return "\n".join(parts)


def _line(row: FlagRow) -> str:
    remarks = [row.about] if row.about else []
    if row.values:
        remarks.append("; ".join(f"{theirs} is `{ours}`" for theirs, ours in row.values.items()))
    if row.value is not None:
        remarks.append(f"sets it to `{str(row.value).lower()}`")
    if row.of:
        remarks.append(f"of {', '.join(f'`{name}`' for name in row.of)}")
    if row.default is not None:
        remarks.append(f"without the flag the importer writes slime's `{str(row.default).lower()}`")
    if row.older:
        remarks = [*(remarks or [row.why]), "a flag of older versions"]
    key = f"`{row.key.replace('.*', '')}`" if row.key else "none"
    return f"| `{row.name}` | {key} | {'; '.join(remarks) or row.why} |"
