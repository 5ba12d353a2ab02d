"""Models of the Hugging Face hub: brought here, and uploaded."""

from dataclasses import dataclass
from pathlib import Path

from rlrun.models.hub import download, first_line

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py", "*.tiktoken"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A folder on this machine."""

    folder: Path
    commit: str | None = None
    """Of the hub's repository; None for a folder that did not come from there."""


def local_folder(name: str, revision: str | None) -> LocalModel:
    """The folder that `name` is, or the hub's files of the model with that id, downloaded where they are not
    here yet. ValueError where there is neither.
    """
    folder = Path(name).expanduser()
    if folder.exists():
        if revision is not None:
            raise ValueError(f"--revision is for models on the hub; {folder} is a folder here")
        return LocalModel(folder)
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"there is no folder {folder}")
    try:
        path = download(name, _PATTERNS, revision)
    except ValueError as error:
        raise ValueError(f"{name} is no folder, and the hub does not give it: {error}") from error
    return LocalModel(path, path.name)


def upload(folder: Path, name: str) -> str:
    """Upload a folder as the model `name`, which is made (private) where it does not exist; returns the
    commit's address. ValueError where the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by rlrun convert")
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError) as error:
        raise ValueError(
            f"{folder} is complete, and the hub does not take it as {name}: {first_line(error)}"
        ) from error
    return str(commit.commit_url)
