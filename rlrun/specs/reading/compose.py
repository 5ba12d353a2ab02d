"""Merges all sources of a spec into one document.

The order is: the files that a file extends, the file, further files, profiles (`[profiles.NAME]`, variants
of a job that `--profile NAME` chooses), `--set`. A later source overrides an earlier one. At the end,
variables are substituted, and tables that are set to false are removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomli

from rlrun.specs.paths import absolute_path, display_path, path_kind, suggest_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import (
    Finding,
    Problem,
    SpecText,
    coded,
    format_value,
    problem_at,
    problem_without_place,
)
from rlrun.specs.problems.positions import KeyPath, Mark, find_positions
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.reading.composition import Composition
from rlrun.specs.reading.overlay import Origin, merge_document
from rlrun.specs.reading.removed_tables import remove_tables
from rlrun.specs.reading.syntax import parse
from rlrun.specs.reading.variables import substitute_variables, variable_names

_OTHER_FILES = {
    ".py": "`rlrun import trl FILE` writes the spec of a script of TRL's GRPOTrainer; docs/python.md starts "
    "jobs from Python",
    ".sh": "`rlrun import slime FILE` and `rlrun import verl FILE` write the spec of a launch script",
    **dict.fromkeys(
        (".yaml", ".yml"),
        "`rlrun import` writes a spec from another trainer's file, and `rlrun init` one to start from",
    ),
}
"""What to do with a file that is given in place of a spec, by its suffix."""
STANDARD_INPUT = Path("/dev/stdin")
"""Path of a spec that is piped in. Its relative paths start from the working folder."""


def compose(
    files: Sequence[Path | SpecText], overrides: Sequence[str] = (), profiles: Sequence[str] = ()
) -> Composition:
    """Returns the merged document of the files, the profiles and the `--set` overrides.

    A `SpecText` is a document that is not a file; its relative paths start from its folder.
    """
    composition = Composition()
    for file in files:
        if isinstance(file, SpecText):
            _add_source(composition, file, ())
        else:
            _add_file(composition, file, display_path(file), ())
    apply_profiles(composition, profiles)
    for override in overrides:
        _add_override(composition, override)
    substitute_variables(composition)
    for document in (composition.data, *composition.variants.values()):
        remove_tables(document)
    return composition


def _add_file(composition: Composition, path: Path, name: str, chain: tuple[Path, ...]) -> None:
    """Merges a file after the files that it extends. `chain`: the files that led here by `extends`."""
    if cure := _OTHER_FILES.get(path.suffix):
        message = f"a spec is a TOML file, not *{path.suffix}"
        composition.add_unreadable(problem_without_place(message, name, Code.FILE, cure))
        return
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        composition.add_unreadable(_unreadable(path, name, error))
        return
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
        composition.add_unreadable(problem_without_place(message, name, Code.FILE, "save the file as UTF-8"))
        return
    folder = Path.cwd() if path == STANDARD_INPUT else path.parent.absolute()
    _add_source(composition, SpecText(name, text, folder), (*chain, path.resolve()))


def _add_source(composition: Composition, source: SpecText, chain: tuple[Path, ...]) -> None:
    """Merges a document after the files that it extends. `chain`: the files that led here, and its own."""
    parsed = parse(source)
    for problem in parsed.problems:
        composition.add_unreadable(problem)
    marks = find_positions(parsed.text)
    _add_bases(composition, parsed.data.pop("extends", []), source, marks, chain)
    composition.files.append(source)
    _merge(composition, parsed.data, source, marks)


def _add_bases(
    composition: Composition,
    bases: object,
    source: SpecText,
    marks: dict[KeyPath, Mark],
    chain: tuple[Path, ...],
) -> None:
    """Merges the files that a file extends, in order. `marks` has the position of each name."""
    base_names = [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else [None]
    for number, base in enumerate(base_names):
        mark = marks.get(("extends", number)) or marks["extends",]
        path: KeyPath = ("extends", number) if isinstance(bases, list) else ("extends",)
        if not isinstance(base, str):
            cure = 'write `extends = "FILE"` or `extends = ["FILE", "FILE"]`'
            message = "must be a file name or an array of file names"
            finding = Finding(path, message, cure, found=base, code=Code.EXTENDS)
            composition.add_unreadable(problem_at(finding, source, mark.value_start, mark.value_end))
            continue
        file = absolute_path(base, source.folder)
        if base_finding := _check_base(path, base, file, chain):
            composition.add_unreadable(problem_at(base_finding, source, mark.value_start, mark.value_end))
        else:
            _add_file(composition, file, display_path(file), chain)


def _check_base(path: KeyPath, base: str, file: Path, chain: tuple[Path, ...]) -> Finding | None:
    """Returns a finding where the extended file does not exist, or extends itself through `chain`."""
    if path_kind(file) != "file":
        suggestion = suggest_path(base, file)
        cure = (
            f"did you mean {suggestion}?"
            if suggestion
            else "check the path; it is relative to the file that has `extends`"
        )
        return Finding(path, f"there is no file {file}", cure, suggestion, base, code=Code.EXTENDS)
    if file.resolve() in chain:
        cycle = " -> ".join(link.name for link in (*chain[chain.index(file.resolve()) :], file))
        message = f"a file extends itself: {cycle}"
        return Finding(path, message, "remove one of the links", found=base, code=Code.EXTENDS)
    return None


def _add_override(composition: Composition, override: str) -> None:
    """Merges `a.b=value`. A value that is not valid TOML is a string."""
    key, equals, value = override.partition("=")
    name = f"--set {key.strip()}" if equals and key.strip() else "--set"
    source = SpecText(name, override, Path.cwd())
    if not equals or not key.strip():
        composition.add_unreadable(
            problem_without_place(
                f"{override!r} has no key or no value", name, Code.OVERRIDE, "write --set key.path=value"
            )
        )
        return
    text = override
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError:
        text = f"{key}={_as_string(value)}"
        try:
            data = tomli.loads(text)
        except tomli.TOMLDecodeError:
            composition.add_unreadable(
                problem_without_place(
                    f"{key!r} is not a key path", name, Code.OVERRIDE, "write --set key.path=value"
                )
            )
            return
    source = SpecText(name, text, Path.cwd())
    for key, cure in (
        ("extends", "name the file before this one"),
        ("profiles", "choose one: --profile NAME"),
    ):
        if key in data:
            message = f"`{key}` cannot be set here"
            composition.add_unreadable(problem_without_place(message, name, Code.OVERRIDE, cure))
            return
    composition.overrides.append(source)
    _merge(composition, data, source, find_positions(text))


def _as_string(value: str) -> str:
    return f'"{"".join(map(_escaped, value.strip()))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _merge(
    composition: Composition, data: dict[str, Any], source: SpecText, marks: dict[KeyPath, Mark]
) -> None:
    origins = {path: Origin(source, mark) for path, mark in marks.items() if path[:1] != ("extends",)}
    composition.referenced.update(variable_names(data))
    for problem in merge_document(composition.data, composition.origins, data, origins):
        composition.add_unreadable(problem)


def _unreadable(path: Path, name: str, error: OSError) -> Problem:
    if isinstance(error, FileNotFoundError):
        suggestion = suggest_path(name, path)
        cure = f"did you mean {suggestion}?" if suggestion else None
        return problem_without_place("there is no such file", name, Code.FILE, cure, suggestion)
    return problem_without_place(f"cannot be read: {error.strerror}", name, Code.FILE)


def apply_profiles(composition: Composition, chosen: Sequence[str]) -> None:
    """Merges the chosen profiles into the document, and each other profile into a copy of it."""
    written = composition.data.pop("profiles", {})
    composition.findings += coded(profile_findings(written), Code.PROFILE)
    profiles = valid_profiles(written, composition.findings)
    for name in chosen:
        if name not in profiles and name not in (written if isinstance(written, dict) else {}):
            message, cure, meant = unknown_profile(name, profiles)
            source = f"--profile {name}"
            composition.add_unreadable(problem_without_place(message, source, Code.PROFILE, cure, meant))
    plain = deepcopy(composition.data)
    for name in dict.fromkeys(chosen):
        if name in profiles:
            origins = origins_of(name, composition.origins)
            merge_document(composition.data, composition.origins, deepcopy(profiles[name]), origins)
    for name, table in profiles.items():
        if name not in chosen:
            variant, origins = deepcopy(plain), dict(composition.origins)
            merge_document(variant, origins, deepcopy(table), origins_of(name, composition.origins))
            composition.variants[name] = variant


def profile_findings(profiles: object) -> Iterator[Finding]:
    """Yields findings about profiles that are not tables, or that contain `profiles` or `extends`."""
    if not isinstance(profiles, dict):
        cure = "write [profiles.NAME]"
        yield Finding(("profiles",), f"must be a table, found {format_value(profiles)}", cure, found=profiles)
        return
    for name, table in profiles.items():
        path: KeyPath = ("profiles", name)
        if not isinstance(table, dict):
            cure = f"write the profile's keys under [profiles.{name}]"
            yield Finding(path, f"must be a table, found {format_value(table)}", cure, found=table)
            continue
        for key in ("profiles", "extends"):
            if key in table:
                cure = f"put `{key}` before the first table of the file"
                yield Finding((*path, key), f"a profile cannot contain `{key}`", cure, at_value=False)


def unknown_profile(name: str, profiles: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Returns the message, cure and suggestion for a profile that no file defines."""
    meant = nearest(name, profiles)
    defined = ", ".join(profiles) or "none"
    guess = f'did you mean "{meant}"? ' if meant else ""
    return f'there is no profile "{name}"', f"{guess}(profiles in the files: {defined})", meant


def origins_of(name: str, origins: Mapping[KeyPath, Origin]) -> dict[KeyPath, Origin]:
    """Returns the origins of a profile's keys, by the path that each key has in the spec."""
    return {
        path[2:]: origin for path, origin in origins.items() if path[:2] == ("profiles", name) and path[2:]
    }


def valid_profiles(profiles: object, broken: Sequence[Finding]) -> dict[str, dict[str, Any]]:
    """Returns the profiles without findings."""
    bad = {finding.path[1] for finding in broken if len(finding.path) > 1}
    tables = profiles if isinstance(profiles, dict) else {}
    return {name: table for name, table in tables.items() if name not in bad}
