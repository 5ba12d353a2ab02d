"""`rlrun validate`: reports every problem of a spec in one pass."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    AsJson,
    Overrides,
    Profiles,
    Quiet,
    Specs,
    Verbose,
    load,
)
from rlrun.cli.error_report import print_problems, print_warnings
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import SpecError, dotted, format_value, problem_without_place
from rlrun.specs.problems.spelling import nearest

if TYPE_CHECKING:
    from rlrun.specs.derived.resolution import Resolved
    from rlrun.specs.reading.loading import LoadedSpec
    from rlrun.specs.sections.job import Spec


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    as_json: AsJson = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Show where the value of a key, or of each key of a table, comes from."
        ),
    ] = None,
    allow_local_plugins: AllowLocalPlugins = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Report every problem of a spec and of the files it names, without starting anything.

    Reads the model's configuration and a few rows of the data. Needs no GPU, no network and no torch. The
    exit code is 2 if something is wrong.
    """
    from rlrun.runner.job.preflight import check_files

    try:
        loaded = load(specs, overrides, profiles)
        notes = check_files(loaded) if explain is None else []
    except SpecError as error:
        if as_json:
            print(json.dumps({"valid": False, "problems": [problem.as_dict() for problem in error.problems]}))
        else:
            print_problems(error.problems)
        raise typer.Exit(2) from None
    except ValueError as error:
        if not as_json:
            raise
        problem = problem_without_place(str(error), " + ".join(specs), Code.FILE)
        print(json.dumps({"valid": False, "problems": [problem.as_dict()]}))
        raise typer.Exit(2) from None
    if explain is not None:
        _explain(loaded, explain, as_json)
    elif as_json:
        warnings = [problem.as_dict() for problem in [*loaded.warnings(), *notes]]
        choices = {
            "engines": loaded.engine_reasons(),
            "dtypes": loaded.dtype_reasons(),
            "shared_prefixes": _sharing(_resolved(loaded)),
        }
        print(json.dumps({"valid": True, "problems": [], "warnings": warnings} | choices))
    elif not quiet:
        print_warnings(notes)
        resolved = _resolved(loaded)
        print_text(f"{' + '.join(specs)}: valid", *loaded.choices(resolved.sharing), sep="\n")
        print_text(_limits(resolved.spec))
        if verbose:
            print_text(*given_keys(loaded), sep="\n")


def _resolved(loaded: "LoadedSpec") -> "Resolved":
    from rlrun.runner.planning.planned_model import resolve_on_this_host

    return resolve_on_this_host(loaded.spec)


def _sharing(resolved: "Resolved") -> list[str]:
    """Returns whether the trainer shares prefixes, if the spec leaves it open and the models are here."""
    return [] if resolved.sharing is None else [str(resolved.sharing)]


def _limits(spec: "Spec") -> str:
    """Returns the limits of samples; longer prompts are dropped, and longer responses are cut."""
    from rlrun.plugins.validation import needs_of
    from rlrun.specs.derived.sample_limits import sample_limits

    return sample_limits(spec, rollout=needs_of(spec).rollout)


def _explain(loaded: "LoadedSpec", key: str, as_json: bool) -> None:
    from rlrun.specs.derived.resolution import open_keys

    resolved = _resolved(loaded)
    values = dict(_leaves(resolved.spec.model_dump(mode="json"), ""))
    reasons = dict(resolved.reasons) | {
        f"{dotted(path)}.dtype": choice.reason for path, choice in loaded.dtype_choices.items()
    }
    origins = {
        name: f"derived: {reasons[name]}" if name in reasons else "derived"
        for name, _ in open_keys(resolved.spec)
    }
    chosen = {name: value for name, value in values.items() if name == key or name.startswith(f"{key}.")}
    if not chosen:
        meant = nearest(key, values)
        raise ValueError(f"the spec has no key {key}" + (f"; did you mean {meant}?" if meant else ""))
    rows = [(name, value, origins.get(name) or loaded.origin(name)) for name, value in chosen.items()]
    if as_json:
        print(json.dumps([{"key": name, "value": value, "origin": origin} for name, value, origin in rows]))
        return
    print_text(*(_explained(*row) for row in rows), sep="\n")


def given_keys(loaded: "LoadedSpec") -> list[str]:
    """Returns a line for each key that the spec sets: its value, and where it is set."""
    leaves = _leaves(loaded.spec.model_dump(mode="json"), "")
    rows = [(name, value, loaded.origin(name)) for name, value in leaves]
    return [_explained(*row) for row in rows if row[2] != "default"]


def _explained(name: str, value: Any, origin: str) -> str:
    return f"{name} = {'unset' if value is None else format_value(value)}  ({origin})"


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """Returns every value that is not a table, with its dotted path; arrays of tables are expanded, too."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(number): table for number, table in enumerate(value)}
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{path}.{key}" if path else key)]
