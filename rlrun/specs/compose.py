"""Many sources to one document: `extends`, several files, profiles, `--set`; then variables. Later wins."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli

from rlrun.specs.overlay import Origin, lay_on
from rlrun.specs.paths import absolute_path, kind_of, shown_path, similar_path
from rlrun.specs.positions import KeyPath, Mark, find_positions, line_and_column
from rlrun.specs.problems import Finding, Problem, Source, problem_at, problem_without_place
from rlrun.specs.profiles import origins_of, profile_findings, unknown_profile, usable
from rlrun.specs.syntax import parse
from rlrun.specs.variables import Substitution, variable_findings, variable_names


@dataclass(slots=True)
class Composition:
    """The merged document, before anyone has checked what it says."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[Source] = field(default_factory=list)
    """Every file read, in the order of merging; the last one is what the user named last."""
    complete: bool = True
    """False when a file or statement could not be read: a missing key may only be unreadable."""
    findings: list[Finding] = field(default_factory=list)
    """What is wrong with variables and profiles."""
    variables: dict[str, Any] = field(default_factory=dict)
    """`[vars]`."""
    used: dict[KeyPath, str] = field(default_factory=dict)
    """Where a variable was put in, and which."""
    referenced: set[str] = field(default_factory=set)
    """Variables that any source refers to, overridden keys included."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each profile that nobody asked for, the document with that profile on top."""

    def fail(self, problem: Problem) -> None:
        """Note a problem that keeps something from being read."""
        self.problems.append(problem)
        self.complete = False

    def place(self, finding: Finding) -> Problem:
        """A finding where its key was written, else another key that takes part, else the table around it."""
        path = next((path for path in (finding.path, *finding.others) if path in self.origins), finding.path)
        for depth in range(len(path), 0, -1):
            if origin := self.origins.get(path[:depth]):
                mark = origin.mark
                at_value = finding.at_value and depth == len(path)
                start, end = (
                    (mark.value_start, mark.value_end) if at_value else (mark.key_start, mark.key_end)
                )
                return problem_at(finding, origin.source, start, end)
        source = self.files[-1] if self.files else Source("--set", "", Path())
        return problem_at(finding, source, 0, 1)


def compose(
    paths: Sequence[Path], overrides: Sequence[str] = (), profiles: Sequence[str] = ()
) -> Composition:
    """Read files left to right, each on top of what it extends, then profiles, then `--set` overrides."""
    composition = Composition()
    for path in paths:
        _add_file(composition, path, shown_path(path), ())
    _add_profiles(composition, profiles)
    for override in overrides:
        _add_override(composition, override)
    _put_in_variables(composition)
    return composition


def locate(origin: Origin) -> str:
    """`file:line` of an origin."""
    return f"{origin.source.name}:{line_and_column(origin.source.text, origin.mark.key_start)[0]}"


def _add_profiles(composition: Composition, chosen: Sequence[str]) -> None:
    """Lay the chosen profiles on the document, and each of the others on a copy of it."""
    written = composition.data.pop("profiles", {})
    composition.findings += profile_findings(written)
    profiles = usable(written, composition.findings)
    for name in chosen:
        if name not in profiles and name not in (written if isinstance(written, dict) else {}):
            message, cure, meant = unknown_profile(name, profiles)
            composition.fail(problem_without_place(message, f"--profile {name}", cure, meant))
    plain = deepcopy(composition.data)
    for name in dict.fromkeys(chosen):
        if name in profiles:
            origins = origins_of(name, composition.origins)
            lay_on(composition.data, composition.origins, deepcopy(profiles[name]), origins)
    for name, table in profiles.items():
        if name not in chosen:
            variant, origins = deepcopy(plain), dict(composition.origins)
            lay_on(variant, origins, deepcopy(table), origins_of(name, composition.origins))
            composition.variants[name] = variant


def _put_in_variables(composition: Composition) -> None:
    variables = composition.data.pop("vars", {})
    composition.findings += variable_findings(variables, composition.referenced)
    composition.variables = variables if isinstance(variables, dict) else {}
    substitution = Substitution(composition.variables)
    composition.data = substitution.apply(composition.data)
    composition.findings += substitution.findings
    composition.used = substitution.used
    for name, variant in composition.variants.items():
        own = variant.pop("vars", {})
        quiet = Substitution(own if isinstance(own, dict) else {})
        composition.variants[name] = quiet.apply(variant)
        composition.findings += [
            replace(finding, path=("profiles", name, *finding.path))
            for finding in quiet.findings
            if ("profiles", name, *finding.path) in composition.origins
        ]


def _add_file(composition: Composition, path: Path, name: str, chain: tuple[Path, ...]) -> None:
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        composition.fail(_unreadable(path, name, error))
        return
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
        composition.fail(problem_without_place(message, name, "save the file as UTF-8"))
        return
    source = Source(name, text, path.parent.absolute())
    parsed = parse(source)
    for problem in parsed.problems:
        composition.fail(problem)
    marks = find_positions(parsed.text)
    _add_bases(composition, parsed.data.pop("extends", []), source, marks, (*chain, path.resolve()))
    composition.files.append(source)
    _merge(composition, parsed.data, source, marks)


def _add_bases(
    composition: Composition,
    bases: object,
    source: Source,
    marks: dict[KeyPath, Mark],
    chain: tuple[Path, ...],
) -> None:
    """Merge what a file extends, in order; `marks` gives the place of each name."""
    named = [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else [None]
    for number, base in enumerate(named):
        mark = marks.get(("extends", number)) or marks["extends",]
        path: KeyPath = ("extends", number) if isinstance(bases, list) else ("extends",)
        if not isinstance(base, str):
            finding = Finding(path, "must be a file name or an array of them", found=base)
            composition.fail(problem_at(finding, source, mark.value_start, mark.value_end))
            continue
        file = absolute_path(base, source.folder)
        if trouble := _base_trouble(path, base, file, chain):
            composition.fail(problem_at(trouble, source, mark.value_start, mark.value_end))
        else:
            _add_file(composition, file, shown_path(file), chain)


def _base_trouble(path: KeyPath, base: str, file: Path, chain: tuple[Path, ...]) -> Finding | None:
    if kind_of(file) != "file":
        suggestion = similar_path(base, file)
        cure = (
            f"did you mean {suggestion}?"
            if suggestion
            else "the path is relative to the file that says `extends`"
        )
        return Finding(path, f"there is no file {file}", cure, suggestion, base)
    if file.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain[chain.index(file.resolve()) :], file))
        return Finding(path, f"a file extends itself: {circle}", "remove one of the links", found=base)
    return None


def _add_override(composition: Composition, override: str) -> None:
    """`a.b=value` with a TOML value; what is not one is taken as a string."""
    key, equals, value = override.partition("=")
    name = f"--set {key.strip()}" if equals and key.strip() else "--set"
    source = Source(name, override, Path.cwd())
    if not equals or not key.strip():
        composition.fail(
            problem_without_place(f"{override!r} sets nothing", name, "write --set key.path=value")
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
            composition.fail(
                problem_without_place(f"{key!r} is not a key path", name, "write --set key.path=value")
            )
            return
    source = Source(name, text, Path.cwd())
    for key, cure in (
        ("extends", "name the file before this one"),
        ("profiles", "choose one: --profile NAME"),
    ):
        if key in data:
            composition.fail(problem_without_place(f"`{key}` cannot be set here", name, cure))
            return
    _merge(composition, data, source, find_positions(text))


def _as_string(value: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value.strip())
    return f'"{escaped}"'


def _merge(
    composition: Composition, data: dict[str, Any], source: Source, marks: dict[KeyPath, Mark]
) -> None:
    origins = {path: Origin(source, mark) for path, mark in marks.items() if path[:1] != ("extends",)}
    composition.referenced.update(variable_names(data))
    for problem in lay_on(composition.data, composition.origins, data, origins):
        composition.fail(problem)


def _unreadable(path: Path, name: str, error: OSError) -> Problem:
    if isinstance(error, FileNotFoundError):
        suggestion = similar_path(name, path)
        cure = f"did you mean {suggestion}?" if suggestion else None
        return problem_without_place("there is no such file", name, cure, suggestion)
    return problem_without_place(f"cannot be read: {error.strerror}", name)
