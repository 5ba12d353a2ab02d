"""What follows the merging of files: profiles on top, then variables in their places."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from rlrun.specs.problems.findings import problem_without_place
from rlrun.specs.reading.composition import Composition
from rlrun.specs.reading.overlay import merge_document
from rlrun.specs.reading.profiles import origins_of, profile_findings, unknown_profile, valid_profiles
from rlrun.specs.reading.variables import Substitution, variable_findings


def apply_profiles(composition: Composition, chosen: Sequence[str]) -> None:
    """Lay the chosen profiles on the document, and each of the others on a copy of it."""
    written = composition.data.pop("profiles", {})
    composition.findings += profile_findings(written)
    profiles = valid_profiles(written, composition.findings)
    for name in chosen:
        if name not in profiles and name not in (written if isinstance(written, dict) else {}):
            message, cure, meant = unknown_profile(name, profiles)
            composition.fail(problem_without_place(message, f"--profile {name}", cure, meant))
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


def substitute_variables(composition: Composition) -> None:
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
