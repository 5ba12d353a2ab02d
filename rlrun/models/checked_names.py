"""Names and paths that come from a file of somebody else's, and may lead astray."""

from pathlib import Path


def inside(folder: Path, name: str) -> Path:
    """The file `name` of a folder. ValueError where name or link lead out of it, or where there is no file.

    The hub's cache links from its snapshots to its blobs: that is within the model's folder there.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"{folder} refers to the file {name!r}: only names within the folder are followed")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{folder} lacks {name}; download or copy it again")
    root = folder.resolve()
    home = root.parent.parent if root.parent.name == "snapshots" else root
    if not path.resolve().is_relative_to(home):
        raise ValueError(
            f"{path} is a link that leads out of its folder, to {path.resolve()}; put the file there instead"
        )
    return path


def check_tensor_name(name: str, path: Path) -> None:
    """ValueError for a name that no model has: it could be taken for a path, or spoil a terminal."""
    if not name or not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        raise ValueError(f"{path} has a tensor named {name!r}; such a name is not accepted")


def some(names: list[str]) -> str:
    """The first names of a list that may be long."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
