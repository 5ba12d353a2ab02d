"""The model's files on this machine, and what exactly they are."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.hub import download
from rlrun.models.json_files import read_json_object
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.sections.model import ModelSpec

_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A Hugging Face folder."""

    folder: Path
    commit: str | None
    """Commit on the hub; None for a folder that did not come from there."""

    def config(self) -> dict[str, Any]:
        """config.json, with what its family's models have where it leaves a key out."""
        return with_family_defaults(read_json_object(self.folder / "config.json"))


def fetch_model(spec: ModelSpec) -> ModelFiles:
    """The policy's files (`fetch_files`); without weights where they are drawn at random."""
    return fetch_files("model.path", spec.path, spec.revision, weights=not spec.random_init)


def fetch_files(key: str, path: str, revision: str | None = None, *, weights: bool = True) -> ModelFiles:
    """The folder that `path` is, or the hub's files, downloaded where they are not yet here.

    JobError, which names `key`, where there is neither.
    """
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return ModelFiles(folder.absolute(), None)
    if folder.is_absolute() or folder.exists():
        raise JobError(f"{key} = {path!r} holds no config.json; name a Hugging Face folder or id")
    patterns = ["*.json", "*.jinja", "*.model", "*.txt", *(["*.safetensors"] if weights else [])]
    try:
        downloaded = download(path, patterns, revision)
    except ValueError as error:
        raise JobError(f"{key} = {path!r} is no folder, and the hub does not give it: {error}") from error
    return ModelFiles(downloaded, downloaded.name)


def check_weights(spec: ModelSpec, folder: Path) -> None:
    """ValueError where the folder's files are missing, cut off, or not those that its config.json asks for.

    Reads headers alone: a rank or an engine would fail in the same way, later and with less to say.
    """
    from rlrun.converters.families.model_folder import WeightFolder
    from rlrun.models.config_json import read_architecture

    if spec.implementation != "torchtitan":
        return
    model = read_architecture(folder)
    if not spec.random_init:
        with WeightFolder(folder, model):
            pass


def fingerprint(folder: Path) -> str:
    """SHA-256 over names and contents of a folder's files: whether two runs start from the same."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    return digest.hexdigest()
