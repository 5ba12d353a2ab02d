"""slime's flags and what each is here, from slime_flags.toml; `docs/slime.md` is this table as a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli

_FILE = Path(__file__).parent / "slime_flags.toml"
_INTRODUCTION = """\
# From slime

Written by `rlrun import slime --table` from the table that the importer goes by; do not edit.

`rlrun import slime run.sh -o job.toml` reads a launch script, with the files it sources, and writes a spec.
The script is read and never executed. In the spec each key carries the flag it came from as a comment; every
flag that has no equal, or that needs a decision, is a line on standard error.

What differs beyond names:

- There is nothing to convert: weights are read from the Hugging Face folder, and the architecture from its
  config.json. All `MODEL_ARGS` go.
- An unknown key is an error, and so is an option that would have no effect.
- The batch equation is checked when the spec is, with the nearest numbers that would fit.
"""
_SGLANG = """\
## SGLang

Flags that begin with `--sglang-` are arguments of the SGLang server: `--sglang-mem-fraction-static` is
`engine.sglang.mem_fraction_static`, and so on, but for those that rlrun sets itself; the importer says which.
In the same way `--router-policy` is `engine.sglang_router.policy`, and such a flag sets `engine.router`;
without one rlrun routes by itself.
"""


@dataclass(frozen=True, slots=True)
class FlagRow:
    """One flag; the fields are told in slime_flags.toml."""

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
    later: str = ""
    origin: str = "slime"

    @property
    def without_key(self) -> str:
        """Why the flag has no key, as a sentence; empty where it has one."""
        return f"not yet: {self.later}" if self.later else self.why


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
    """The page docs/slime.md."""
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
    key = f"`{row.key.replace('.*', '')}`" if row.key else "none"
    return f"| `{row.name}` | {key} | {'; '.join(remarks) or row.without_key} |"
