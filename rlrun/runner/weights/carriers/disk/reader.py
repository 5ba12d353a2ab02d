"""A native engine reads folders: whole models, and the elements that changed after them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlrun.runner.weights.carriers.disk.folder_tensors import FolderTensors
from rlrun.runner.weights.carriers.reader import NewWeights, Reader, parse_version
from rlrun.runner.weights.deltas.applying import DeltaFiles, apply_deltas, check_base
from rlrun.runner.weights.tensor_slots import Shapes


class FolderReader(Reader):
    """Reads folders that the engine was allowed to read when it started."""

    load_format = "disk"

    def read(self, body: Mapping[str, Any]) -> NewWeights:
        """Returns the model in `model_path`; with `deltas` these follow, or stand alone without a path."""
        version, folder, deltas = parse_version(body.get("weight_version")), body.get("model_path"), None
        if "deltas" in body:
            deltas = parse_deltas(body["deltas"], self._permitted)
        path = None if folder is None and deltas is not None else self._permitted(folder)
        return FolderModel(self.engine.shapes, path, version, deltas)

    def _permitted(self, folder: Any) -> str:
        """Returns the path of a folder that weights may be read from; raises ValueError for all others."""
        if not isinstance(folder, str) or not folder or "\0" in folder:
            raise ValueError("update_weights_from_disk needs model_path")
        path, permitted = Path(folder).resolve(), self.engine.folders
        if not any(path.is_relative_to(Path(parent).resolve()) for parent in permitted):
            raise ValueError(
                f"model_path {folder!r} is not below any folder that this engine may read weights from, "
                f"{', '.join(permitted)}: start it with --weights FOLDER"
            )
        return str(path)


class FolderModel(NewWeights):
    """A whole model in a folder, or the elements that changed since then, or since what an engine has."""

    def __init__(
        self, shapes: Shapes, folder: str | None, version: int, deltas: Sequence[DeltaFiles] | None = None
    ) -> None:
        """`shapes`: those of all weights of the model. `folder`: None if the engine has the weights that the
        deltas apply to. `deltas`: None if none may follow.
        """
        super().__init__(version)
        self.payload = "model" if deltas is None else "elements"
        self._shapes, self._folder, self._deltas = shapes, folder, deltas or ()
        self._opened: FolderTensors | None = None

    def open(self, held: int | None) -> None:
        """Compares the shapes of the folder's tensors, or the version that the engine has."""
        if self._folder is None:
            check_base(self._deltas, held)
        else:
            opened = FolderTensors(self._folder)
            opened.check(self._shapes)
            self._opened = opened

    def write(self, into: Mapping[str, torch.Tensor]) -> None:
        """Reads the folder, one tensor after the other, and changes the elements after it."""
        if self._opened is not None:
            self._opened.read(into)
        apply_deltas(self._deltas, into)

    def present(self, names: Iterable[str]) -> Mapping[str, torch.Tensor]:
        """Returns those of the named tensors that the folder has."""
        return {} if self._opened is None else self._opened.present(names)

    def close(self) -> None:
        """Closes the files."""
        self._opened = None


def parse_deltas(raw: Any, permitted: Callable[[str], str]) -> list[DeltaFiles]:
    """Parses the `deltas` of a request; raises ValueError if they are invalid.

    `permitted`: returns a file's path, and raises ValueError if the engine may not read it.
    """
    try:
        return [
            DeltaFiles(parse_version(delta["since"]), tuple(permitted(file) for file in delta["files"]))
            for delta in raw
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"deltas: {error!r}; each needs since and files") from None
