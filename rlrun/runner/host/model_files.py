"""Finds or downloads a model's files, checks them, and identifies their content."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.foreign_files import open_regular
from rlrun.models.hub import Say, download, say_nothing
from rlrun.models.json_files import read_json_object
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.remote_code import CodeFile, code_files, code_problem
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.model import ModelSpec

_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A Hugging Face folder on this machine."""

    folder: Path
    commit: str | None
    """Commit on the hub; None for a local folder."""
    code: tuple[CodeFile, ...] | None = None
    """The Python files that may run (`model.trust_remote_code`); None: none may."""

    def config(self) -> dict[str, Any]:
        """Returns config.json; keys that it leaves out have the default of the model's family.

        The sizes of a multimodal checkpoint's text model are keys of their own, as in other models.
        """
        config = read_json_object(self.folder / "config.json")
        written = {key: config[key] for key in ("model_type", "text_config") if key in config}
        return with_family_defaults(config) | written


def fetch_model(spec: ModelSpec, say: Say = say_nothing) -> ModelFiles:
    """Returns the policy's files; does not download weights that are initialised at random.

    Raises LaunchRefused if there are none, or if the tokenizer's code is needed and not trusted.
    """
    code = spec.trust_remote_code
    files = fetch_files(
        "model.path", spec.path, spec.revision, weights=not spec.random_init, code=code, say=say
    )
    if problem := code_problem(files.folder, is_trusted=code):
        raise LaunchRefused(problem, Code.MODEL)
    return replace(files, code=code_files(files.folder)) if code else files


def fetch_files(
    key: str,
    path: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    code: bool = False,
    say: Say = say_nothing,
) -> ModelFiles:
    """Returns the local folder `path`, or the files of the hub's model `path`, downloaded if necessary.

    `key` is the spec's key for the LaunchRefused that is raised if there is neither. `code`: Python files are
    downloaded, too. `say` shows a line before the hub is asked.
    """
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return ModelFiles(folder.absolute(), None)
    if folder.is_absolute() or folder.exists():
        raise LaunchRefused(
            f"{key} = {path!r} has no config.json; name a Hugging Face folder or id", Code.MODEL
        )
    patterns = ["*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]
    patterns += ["*.safetensors"] * weights + ["*.py"] * code
    try:
        downloaded = download(path, patterns, revision, say=say)
    except ValueError as error:
        raise LaunchRefused(
            f"{key} = {path!r} is not a folder, and it could not be downloaded from the hub: {error}",
            Code.MODEL,
        ) from error
    return ModelFiles(downloaded, downloaded.name)


def check_weights(spec: ModelSpec, folder: Path) -> None:
    """Raises ValueError if weight files are missing or truncated, or do not match config.json.

    Reads only headers. Without this check a rank or an engine would fail later, with a less helpful message.
    """
    from rlrun.converters.families.expected_tensors import check_folder
    from rlrun.models.config_json import read_architecture

    if spec.implementation != "torchtitan":
        return
    model = read_architecture(folder)
    if not spec.random_init:
        check_folder(folder, model)


def fingerprint(folder: Path) -> str:
    """Returns a SHA-256 over the names and contents of a folder's files, to compare two runs' models."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with open_regular(path) as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    return digest.hexdigest()
