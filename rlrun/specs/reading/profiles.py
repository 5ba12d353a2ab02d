"""`[profiles.NAME]`: variants of a job, each laid on top when `--profile NAME` asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlrun.specs.problems.findings import Finding, format_value
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.reading.overlay import Origin


def profile_findings(profiles: object) -> Iterator[Finding]:
    """What is wrong with the tables themselves: profiles that are no tables, or that hold profiles."""
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
    """Message, cure and suggestion for a profile that no file has."""
    meant = nearest(name, profiles)
    known = ", ".join(profiles) or "none"
    guess = f'did you mean "{meant}"? ' if meant else ""
    return f'there is no profile "{name}"', f"{guess}(profiles in the files: {known})", meant


def origins_of(name: str, origins: Mapping[KeyPath, Origin]) -> dict[KeyPath, Origin]:
    """Origins of a profile's keys, by the path they take in the spec."""
    return {
        path[2:]: origin for path, origin in origins.items() if path[:2] == ("profiles", name) and path[2:]
    }


def valid_profiles(profiles: object, broken: Sequence[Finding]) -> dict[str, dict[str, Any]]:
    """The profiles that nothing is wrong with."""
    bad = {finding.path[1] for finding in broken if len(finding.path) > 1}
    tables = profiles if isinstance(profiles, dict) else {}
    return {name: table for name, table in tables.items() if name not in bad}
