"""Checks names and paths that come from files of unknown origin."""

from pathlib import Path


def file_inside(folder: Path, name: str) -> Path:
    """Returns the path of the file `name` in a folder.

    Raises ValueError if the name or a link leads out of the folder, and where the file does not exist.
    Links from a snapshot of the Hugging Face cache to its blobs are allowed: both belong to the same model.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"{folder} refers to the file {name!r}, which is not in the folder")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{folder} lacks {name}; download or copy it again")
    root = folder.resolve()
    allowed_root = root.parent.parent if root.parent.name == "snapshots" else root
    if not path.resolve().is_relative_to(allowed_root):
        raise ValueError(
            f"{path} is a link that leads out of its folder, to {path.resolve()}; put the file there instead"
        )
    return path


def check_tensor_name(name: str, path: Path) -> None:
    """Raises ValueError for a tensor name that could be mistaken for a path or corrupt a terminal."""
    if not name or not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        raise ValueError(f"{path} has a tensor named {name!r}; such a name is not accepted")


def abbreviated(names: list[str]) -> str:
    """Returns the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
