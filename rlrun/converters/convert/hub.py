"""Downloads models from the Hugging Face hub, and uploads them."""

from dataclasses import dataclass
from pathlib import Path

from rlrun.models.error_text import first_line
from rlrun.models.hub import download

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py", "*.tiktoken"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model folder on this machine."""

    folder: Path
    commit: str | None = None
    """Commit of the hub's repository; None for a folder that was not downloaded."""


def local_folder(name: str, revision: str | None) -> LocalModel:
    """Returns the folder `name`, or else downloads the model with that id from the hub.

    Raises ValueError if neither exists.
    """
    folder = Path(name).expanduser()
    if folder.exists():
        if revision is not None:
            raise ValueError(f"--revision is only for models on the hub, and {folder} is a folder: remove it")
        return LocalModel(folder)
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"there is no folder {folder}")
    try:
        path = download(name, _PATTERNS, revision)
    except ValueError as error:
        raise ValueError(f"{name} is not a folder, and cannot be downloaded from the hub: {error}") from error
    return LocalModel(path, path.name)


def upload(folder: Path, name: str, message: str) -> str:
    """Uploads a folder as the model `name`, which is created as a private one if it does not exist.

    `message` is that of the commit. Returns its URL. Raises ValueError if the hub refuses the upload, or
    cannot be reached.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # a boundary: different versions of the library use different HTTP libraries
        raise ValueError(
            f"{folder} is complete, but the hub did not store it as {name}: {first_line(error)}"
        ) from error
    return str(commit.commit_url)
