"""Writes and compares spec.lock.json, which pins everything that decides what a run does.

Secrets are stored as the references that the spec has.
"""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlrun.models.foreign_files import read_bytes
from rlrun.models.json_files import parse_json
from rlrun.plugins.data_copies import local_path
from rlrun.plugins.registry import PluginError, load
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.host.model_files import ModelFiles, fingerprint
from rlrun.specs.derived.default_dtype import DtypeChoice, with_dtypes
from rlrun.specs.derived.default_engine import EngineChoice
from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.paths import display_path, path_fields
from rlrun.specs.problems.findings import SpecText
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.suggestions import all_models
from rlrun.specs.reading.differences import Difference, find_differences
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.reading.reference import as_document
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import is_derived

_PACKAGES = ("rlrun", "torch", "torchtitan", "transformers", "ray", "numpy", "safetensors", "reasoning-gym")
_FIXED = ("seed", "model", "data")
"""Sections that must not change when a run is resumed."""
_FIXED_IN_EVALUATIONS = ("eval", "rollout", "rewards", "debug")
"""Further sections that must not change when an evaluation is resumed: all samples are of one kind."""
_FREE_IN_EVALUATIONS = tuple(
    f"eval.server.{name}" for name in ("url", "api_key", "concurrency", "timeout", "retry_seconds")
)
"""Keys of these sections that may change, because samples do not depend on them."""
_DERIVED = {
    name for model in all_models(Spec) for name, field in model.model_fields.items() if is_derived(field)
}
_NAMES = ("name", "runs_dir")
"""Keys that do not affect what a run does."""
_MAX_BYTES = 64 << 20
_SLICE = re.compile(r"@\[[^\]]*\]$")
_BEGAN = "the run began with "


def make_lock(loaded: LoadedSpec, model: ModelFiles | None) -> dict[str, Any]:
    """Returns the lock of a launch; hashing the files of model and data may take long.

    `model`: None for an evaluation of a model that is served elsewhere.
    """
    return {
        "spec": loaded.spec.model_dump(mode="json"),
        "given": (loaded.asked or loaded.spec).model_dump(mode="json", exclude_unset=True),
        "engines": loaded.engine_reasons(),
        "sources": {source.name: source.text for source in loaded.composition.files},
        "model": _served(loaded.spec) if model is None else _files_of(model),
        "data": dict(data_hashes(loaded.spec)),
        "versions": {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "git": git_state(Path.cwd()),
        "platform": platform.platform(),
    }


def _files_of(model: ModelFiles) -> dict[str, Any]:
    return {
        "folder": str(model.folder),
        "commit": model.commit,
        "sha256": fingerprint(model.folder),
        "code": None if model.code is None else [asdict(file) for file in model.code],
    }


def _served(spec: Spec) -> dict[str, Any]:
    """Returns what is known of a model that is served elsewhere: its name, and not its files."""
    assert spec.eval.server is not None
    name = spec.eval.server.model
    return {"folder": name, "commit": None, "sha256": hashlib.sha256(name.encode()).hexdigest(), "code": None}


class _Model(BaseModel):
    sha256: str


class _Locked(BaseModel):
    """The fields of a lock that a comparison needs."""

    spec: dict[str, Any]
    model: _Model


def read_lock(path: Path) -> dict[str, Any]:
    """Returns a lock that an earlier launch wrote. Raises RunFolderError if the file is not a lock."""
    try:
        locked = parse_json(read_bytes(path, _MAX_BYTES))
        _Locked.model_validate(locked)
    except ValidationError:
        raise RunFolderError(f"{display_path(path)} is not a lock file: it has no spec and model") from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{display_path(path)} cannot be read: {error}") from None
    return dict(locked)


def launched_spec(locked: Mapping[str, Any]) -> SpecText:
    """Returns the spec of a launch as a document: all keys that were given, also by `--set` and profiles.

    Raises RunFolderError for a lock of an earlier version of rlrun, which has none.
    """
    given = locked.get("given")
    if not isinstance(given, dict):
        raise RunFolderError(
            "an earlier version of rlrun launched this run, and did not store what was given: continue it "
            "with rlrun launch SPEC --resume, and with every --set of its launch"
        )
    return SpecText("spec.lock.json", as_document(given), Path.cwd())


def compared_values(locked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of a lock is compared between two runs.

    `given` repeats keys of `spec`, and the rest that is left out differs between any two launches.
    """
    left_out = ("given", "sources", "platform", "engines")
    return {name: value for name, value in locked.items() if name not in left_out}


def lock_differences(before: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Returns the differences between two locks, except for names and folders."""
    return list(find_differences(_comparable(before), _comparable(now)))


def check_same_run(before: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Returns the keys of the spec that a resume changes.

    Raises RunFolderError if the seed, the data or the model changed, which the checkpoints depend on.
    """
    changes = check_same_spec(before, now["spec"])
    if before["model"]["sha256"] != now["model"]["sha256"]:
        raise RunFolderError(
            f"the files of {now['model']['folder']} changed since the run began: start another run (--new)"
        )
    return changes


def check_same_spec(before: dict[str, Any], spec: dict[str, Any]) -> list[Difference]:
    """Returns the keys that a resume changes; RunFolderError if the checkpoints depend on one of them."""
    differences = list(find_differences(before["spec"], spec))
    changes = [
        difference
        for difference in differences
        if _section(difference) not in _NAMES and not _is_newly_resolved(difference)
    ]
    evaluates = before["spec"].get("debug", {}).get("mode") == "eval"
    sections = (*_FIXED, *_FIXED_IN_EVALUATIONS) if evaluates else _FIXED
    if fixed := [
        difference
        for difference in changes
        if _section(difference) in sections and difference.key not in _FREE_IN_EVALUATIONS
    ]:
        what = "samples so far" if evaluates else "run's checkpoints"
        raise RunFolderError(
            f"the spec changed since the run began: {'; '.join(map(str, fixed))}. The {what} "
            "depend on these keys: change them back, or start another run (--new)"
        )
    return changes


def check_same_code(before: dict[str, Any], model: ModelFiles | None) -> None:
    """Raises RunFolderError if a model's Python files differ from those that an earlier launch ran."""
    if model is None:
        return
    ran = {file["name"]: file["sha256"] for file in before["model"].get("code") or ()}
    now = {file.name: file.sha256 for file in model.code or ()}
    if changed := sorted(name for name in ran | now if ran.get(name) != now.get(name)):
        raise RunFolderError(
            f"Python files of {model.folder} changed since the run began: {', '.join(changed)}. They were "
            "not run: put the earlier ones back, or read them and start another run (--new)"
        )


def _is_newly_resolved(difference: Difference) -> bool:
    """Returns whether an earlier version of rlrun left a default open in its lock that is resolved now."""
    return difference.before is None and difference.key.rpartition(".")[2] in _DERIVED


def _section(difference: Difference) -> str:
    return difference.key.partition(".")[0]


def git_state(folder: Path) -> dict[str, Any] | None:
    """Returns the commit of the repository around `folder` and whether files changed; None without one.

    A repository may come from elsewhere, and its own configuration names programs that `git status` runs: a
    monitor of files, hooks, filters. None of them is run, so a file that a filter changes counts as changed.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        names = _git(folder, "config", "--list", "--name-only", "-z").split("\0")
        filters = [name for name in names if name.startswith("filter.")]
        without_programs = _git_settings(["core.fsmonitor", "core.hooksPath", *filters])
        status = ("--no-optional-locks", "status", "--porcelain", "--ignore-submodules=all")
        return {"commit": commit, "changed": bool(_git(folder, *status, variables=without_programs))}
    except (OSError, subprocess.SubprocessError):
        return None


def _comparable(locked: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in locked["spec"].items() if name not in _NAMES}
    model = {name: value for name, value in locked["model"].items() if name != "folder"}
    unchanged = {name: locked.get(name) for name in ("data", "versions", "git")}
    return {"spec": spec, "model": model, **unchanged}


def data_hashes(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yields the key in the spec and the SHA-256 of every file that a data source names."""
    sources: list[tuple[str, DataSpec]] = [("data", spec.data)]
    sources += [(f"eval.datasets.{number}", dataset) for number, dataset in enumerate(spec.eval.datasets)]
    for key, source in sources:
        try:
            params = load("data", source.type).Params
        except PluginError:  # the spec was loaded without checking its plugins
            continue
        for name, _ in path_fields(params):
            path = Path(_SLICE.sub("", local_path(str(source.params.get(name, "")))))
            if path.is_file():
                with path.open("rb") as file:
                    yield f"{key}.{name}", hashlib.file_digest(file, "sha256").hexdigest()


def _git_settings(names: Sequence[str]) -> dict[str, str]:
    """Returns variables that unset settings of git; `-c` cannot, where a name has an equals sign."""
    variables = {"GIT_CONFIG_COUNT": str(len(names))}
    for number, name in enumerate(names):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": ""}
    return variables


def _git(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=os.environ | (variables or {}),
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
    )
    return process.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def keep_choices(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the choices of the run's lock where it leaves them open.

    A spec may leave the kind of an engine open, which then depends on the packages of the host
    (`specs/reading/engine_types.py`), and the precision, which depends on its processor. Runs that began when
    prefixes were not shared by default have `share_prefixes = false` in their lock.
    """
    return _keep_sharing(_keep_dtypes(_keep_engines(loaded, locked["spec"]), locked["spec"]), locked["spec"])


def _keep_engines(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the engines of the run's lock wherever another host could have led to others."""
    spec, choices = loaded.spec, dict(loaded.engine_choices)
    for path, choice in choices.items():
        before = _locked_value(spec, path, locked, "type")
        if choice.depends_on_host and before in ("native", "sglang") and before != choice.type:
            choices[path] = EngineChoice(before, f"{_BEGAN}them")
            spec = _with_type(spec, path, before)
    return replace(loaded, spec=spec, engine_choices=choices)


def _keep_dtypes(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec with the precisions of the run's lock, which another processor would change."""
    choices = dict(loaded.dtype_choices)
    for path, choice in choices.items():
        before = _locked_value(loaded.spec, path, locked, "dtype")
        if choice.follows_processor and before in ("float32", "bfloat16") and before != choice.dtype:
            choices[path] = DtypeChoice(before, f"{_BEGAN}it")
    return replace(loaded, spec=with_dtypes(loaded.spec, choices), dtype_choices=choices)


def _keep_sharing(loaded: LoadedSpec, locked: Mapping[str, Any]) -> LoadedSpec:
    """Returns the spec without shared prefixes if it leaves them open, and the run's lock says that it began
    without; log-probs would otherwise change by rounding.
    """
    spec, before = loaded.spec, locked.get("trainer", {}).get("share_prefixes")
    if spec.trainer.given("share_prefixes") is not None or before is not False:
        return loaded
    trainer = spec.trainer.model_copy(update={"share_prefixes": False})
    return replace(loaded, spec=spec.with_sections(trainer=trainer))


def _locked_value(spec: Spec, path: KeyPath, locked: Mapping[str, Any], key: str) -> Any:
    """Returns a section's value in a lock; None where the lock does not have the section."""
    if len(path) == 1:
        return locked.get(str(path[0]), {}).get(key)
    name = spec.engines[int(path[1])].name
    return next((table.get(key) for table in locked.get("engines", []) if table.get("name") == name), None)


def _with_type(spec: Spec, path: KeyPath, kind: str) -> Spec:
    if path == POLICY:
        return spec.model_copy(update={"engine": spec.engine.model_copy(update={"type": kind})})
    sections = [
        section.model_copy(update={"type": kind}) if number == path[1] else section
        for number, section in enumerate(spec.engines)
    ]
    return spec.model_copy(update={"engines": tuple(sections)})
