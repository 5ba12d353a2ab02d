"""Converts a slime launch script to a spec: `rlrun import slime run.sh`.

    script -> shell/script.py (words of the training command) -> flags -> flags.toml, flag_rules.py -> Draft

No flag is dropped silently: each becomes a key, whose comment names the flag, or a note.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.converters.imports.secrets import is_secret
from rlrun.converters.imports.spec_draft import plain_name, refer_to_variables
from rlrun.converters.imports.training_command import last_training_command
from rlrun.converters.shell.files import candidate_files
from rlrun.converters.shell.script import Script, Word, read_script
from rlrun.converters.slime.draft import Draft, Flag
from rlrun.converters.slime.flag_rules import RULES
from rlrun.converters.slime.flag_table import FlagRow, flag_table, read_value
from rlrun.converters.slime.optimizer_flags import critic
from rlrun.specs.derived.sglang_arguments import ROUTER, SERVER
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.reading.variables import toml_value

_ASYNC = re.compile(r"(?:.*/)?train_async\.py")
_PROGRAMS = {"--sglang-": ("engine.sglang", SERVER), "--router-": ("engine.sglang_router", ROUTER)}
"""For each prefix of flags: the table for their values, and the program that they are arguments of."""
_SERVER_KEYS = {"max-total-tokens": "engine.max_cache_tokens"}
_SERVER_SWITCHES = {"enable-fp32-lm-head": ("trainer.head_dtype", "float32")}
_ENCODERS = "encoder-"
_GROUP = re.compile(r"OPEN_TRAINING_INT4_GROUP_SIZE\W+(\d+)")
_TRAINING = re.compile(r"(?:.*/)?train(?:_async)?\.py")
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")


def import_script(path: Path) -> Draft:
    """Returns the spec of a script's training command. Raises ValueError if there is no such command."""
    script = read_script(path)
    command = training_command(script, path)
    assumptions = dict.fromkeys(note for word in command for note in word.notes)
    read = partial(_text_of, script, path)
    groups = [match for words in script.commands for word in words for match in _GROUP.findall(word.text)]
    name = plain_name(path.stem, "run")
    group = int(groups[-1]) if groups else None
    return import_command(path.name, name, command, [*script.notes, *assumptions], read, int4_group=group)


def import_command(
    source: str,
    name: str,
    command: Sequence[Word],
    notes: Sequence[str],
    read_file: Callable[[str], str | None],
    *,
    int4_group: int | None = None,
) -> Draft:
    """Returns the spec of a training command, whose first word is the training program. `int4_group`: the
    group size of INT4 training, which slime reads from the environment.
    """
    is_async = any(_ASYNC.fullmatch(word.text) for word in command)
    draft = Draft(
        source=source,
        flags=read_flags(command),
        is_async=is_async,
        notes=list(notes),
        read_file=read_file,
        int4_group=int4_group,
    )
    draft.set("name", name, ())
    for flag in draft.flags.values():
        _translate_flag(draft, flag)
    for rule in RULES.values():
        rule(draft)
    for row in flag_table().values():
        is_set = row.name in draft.flags or (row.key and draft.has(row.key))
        if row.default is not None and row.key and not is_set and not _why_unused(draft.algorithm, row):
            draft.set(row.key, row.default, (), f"slime's default without {row.name}")
    critic(draft)
    refer_to_variables(draft)
    return draft


def _text_of(script: Script, path: Path, written: str) -> str | None:
    """Returns the text of a file that a flag names: one that the script writes, or one on this host."""
    if written in script.files:
        return script.files[written]
    file = next(candidate_files(written, Path(script.folder), path.absolute().parent), None)
    try:
        return file.read_text("utf-8") if file else None
    except (OSError, UnicodeDecodeError):
        return None


def _translate_flag(draft: Draft, flag: Flag) -> None:
    """Translates one flag, unless a rule does."""
    row = flag_table().get(flag.name)
    for earlier in flag.before:
        draft.note(earlier, f"no effect: replaced by the value in {flag.location}")
    prefix = next((prefix for prefix in _PROGRAMS if flag.name.startswith(prefix)), None)
    if row is None and prefix is not None:
        _translate_argument(draft, flag, prefix)
    elif row is None:
        draft.note(flag, _unknown(flag))
    elif row.key is None:
        draft.note(flag, row.why)
    elif row.rule is None:
        _set_key(draft, flag, row)


def _translate_argument(draft: Draft, flag: Flag, prefix: str) -> None:
    """Translates an argument of the SGLang server or router, unless rlrun sets it itself."""
    table, program = _PROGRAMS[prefix]
    name = flag.name.removeprefix(prefix)
    values = [_plain(toml_value(word)) for word in flag.values]
    value = True if not values else values[0] if len(values) == 1 else values
    if program is SERVER and name == "max-running-requests":
        return  # the rule "engine" uses the lower of this and slime's own limit
    if name.startswith(_ENCODERS):
        draft.note(flag, "the servers that compute prompts encode their images, too")
    elif draft.given("--rollout-external-engine-addrs"):
        draft.note(flag, "no effect: external engines have their own settings")
    elif is_secret(name):
        draft.note(
            flag, "left out: secrets do not belong in files, and rlrun creates the servers' keys itself"
        )
    elif name not in program.own:
        draft.set(f"{table}.{name.replace('-', '_')}", value, (flag.name,))
        if program is ROUTER:
            draft.set("engine.router", "sglang-router", (flag.name,))
    elif program is SERVER and name in _SERVER_KEYS and isinstance(value, int):
        draft.set(_SERVER_KEYS[name], value, (flag.name,))
    elif program is SERVER and name in _SERVER_SWITCHES and value is True:
        draft.set(*_SERVER_SWITCHES[name], (flag.name,))
    else:
        decides = program.own[name]
        draft.note(flag, f"set by rlrun: {decides}" if decides else "set by rlrun")


def _plain(value: Any) -> Any:
    """Returns a value that a server's argument can have: dates become text."""
    return value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)


def _unknown(flag: Flag) -> str:
    meant = nearest(flag.name, flag_table(), 0.8)
    return "this flag is not in the list of slime's flags" + (f"; did you mean {meant}?" if meant else "")


def _set_key(draft: Draft, flag: Flag, row: FlagRow) -> None:
    assert row.key is not None
    if why := _why_unused(draft.algorithm, row):
        draft.note(flag, why)
        return
    if row.value is not None:
        draft.set(row.key, row.value, (flag.name,))
        return
    try:
        value = read_value(row, flag.values)
    except ValueError as error:
        draft.note(flag, f"{error}; set {row.key} by hand")
        return
    draft.set(row.key, value, (flag.name,))


def _why_unused(algorithm: str, row: FlagRow) -> str:
    """Returns why a key has no effect under the algorithm; empty if it has one."""
    return f"{algorithm} has no such parameter" if row.of and algorithm not in row.of else ""


def training_command(script: Script, path: Path) -> list[Word]:
    """Returns the words of the training command; without one, those of all arrays named `…_ARGS`."""
    at = last_training_command(script, path, _start_of_training)
    if at is not None:
        return _continued(script, at)
    arrays = {name: words for name, words in script.arrays.items() if name.endswith("_ARGS")}
    if not arrays:
        raise ValueError(
            f"{path} runs no train.py and has no array of arguments: give the script that launches the job"
        )
    script.notes.append(f"no command runs train.py; the flags of {', '.join(arrays)} are imported")
    return [word for words in arrays.values() for word in words]


def _start_of_training(words: Sequence[Word]) -> int | None:
    return next((at for at, word in enumerate(words) if _TRAINING.fullmatch(word.text)), None)


def _continued(script: Script, at: int) -> list[Word]:
    """Returns the training command's words, and those of the next line if only a backslash is missing."""
    words = script.commands[at]
    words = words[_start_of_training(words) :]
    following = script.commands[at + 1] if at + 1 < len(script.commands) else []
    if following and _FLAG.match(following[0].text):
        location = words[-1].location
        script.note(
            f"{location}: a backslash is missing at the line's end; the flags after it are imported too"
        )
        return [*words, *following]
    return words


def read_flags(words: Sequence[Word]) -> dict[str, Flag]:
    """Returns the flags by name. The last occurrence of a flag counts; it refers to the earlier ones."""
    flags: dict[str, Flag] = {}
    current: Flag | None = None
    for word in words:
        match = _FLAG.match(word.text)
        if match and (match.end() == len(word.text) or word.text[match.end()] == "="):
            name = match[0].replace("_", "-")
            value = [word.text[match.end() + 1 :]] if match.end() < len(word.text) else []
            before = flags.pop(name, None)
            current = flags[name] = Flag(name, value, word.location, before)
        elif current is not None:
            current.values.append(word.text)
    return flags
