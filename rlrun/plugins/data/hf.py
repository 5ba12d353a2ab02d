"""Prompts from a dataset of the `datasets` library: an id on the Hugging Face hub, or a local copy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.plugins.data.rows import RowKeys, split_slice
from rlrun.plugins.data.tables import TableSource

SAVED = ("dataset_info.json", "dataset_dict.json")
"""A folder that `save_to_disk` wrote contains one of these files."""


class HfParams(RowKeys):
    """Selects the dataset, its split and its rows."""

    path: str
    """Id such as `openai/gsm8k`, or a folder: one that `save_to_disk` wrote, or one with data files."""
    name: str | None = None
    """Configuration of the dataset, such as `main`. None: the dataset's only configuration."""
    split: str = "train"
    """Name of the split; `train@[100:200]` takes rows 100 to 199 of it."""
    revision: str | None = None
    """Branch, tag or commit on the hub. None: the default branch."""


class Hf(TableSource):
    """Row i is the i-th row of the split. The library keeps rows on disk, so a dataset may exceed memory."""

    Params = HfParams
    api_version = 1

    def __init__(self, params: HfParams) -> None:
        """Raises ValueError if the library cannot load the dataset."""
        self.params = params
        self.folder = Path(params.path) if Path(params.path).is_dir() else None
        self._table = _undecoded(load_table(params))
        count, rows = len(self._table), split_slice(params.split)[1]
        nothing = f"{params.path} has no rows in {params.split} (the split has {count})"
        self._use(range(count)[rows], params.path, nothing)

    @classmethod
    def columns(cls, params: HfParams) -> list[str]:
        """Returns the names of the columns. Raises ValueError if the library cannot load the dataset."""
        return list(load_table(params).column_names)

    def _values(self, number: int) -> dict[str, Any]:
        return dict(self._table[number])


def splits_of(path: str) -> dict[str | None, list[str]]:
    """Returns the splits of each configuration of a dataset; a folder of `save_to_disk` has only None.

    Raises ValueError if the library finds no dataset.
    """
    import datasets

    try:
        if is_saved(path):
            saved: Any = datasets.load_from_disk(path)
            return {None: list(saved) if isinstance(saved, datasets.DatasetDict) else ["train"]}
        names = datasets.get_dataset_config_names(path)
        return {name: list(datasets.get_dataset_split_names(path, name)) for name in names}
    except Exception as error:  # a boundary, as in `load_table`
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def load_table(params: HfParams, file: str | None = None) -> Any:
    """Returns the split, with all its rows. `file`: the only file to read, `hf://datasets/org/name/x.jsonl`.

    Raises ValueError if the library cannot load it.
    """
    import datasets  # needs the data extra and takes seconds; checking a spec does not need it

    split, _ = split_slice(params.split)
    try:
        if not is_saved(params.path):
            return datasets.load_dataset(
                params.path, params.name, split=split, revision=params.revision, data_files=file
            )
        saved: Any = datasets.load_from_disk(params.path)
        return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
    except Exception as error:  # a boundary: the library lets any exception of its loaders through
        raise ValueError(
            f"{params.path} ({split}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def is_saved(path: str) -> bool:
    """Returns whether `save_to_disk` wrote the folder."""
    return any((Path(path) / marker).is_file() for marker in SAVED)


def _undecoded(table: Any) -> Any:
    """Returns the table with images, sound and video as stored bytes and paths, not as decoded objects."""
    for column, feature in table.features.items():
        if (stored := _stored(feature)) != feature:
            table = table.cast_column(column, stored)
    return table


def _stored(feature: Any) -> Any:
    """Returns a column's type with stored instead of decoded objects, also within lists."""
    if getattr(feature, "decode", False):
        return replace(feature, decode=False)
    inner = getattr(feature, "feature", None)
    return feature if inner is None else replace(feature, feature=_stored(inner))
