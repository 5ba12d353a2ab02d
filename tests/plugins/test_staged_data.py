from pathlib import Path

import pytest

from rlrun.plugins.registry import PluginError, build, checked_params
from rlrun.plugins.staged_data import is_here, stage_data
from rlrun.specs.sections.job import Spec

SOURCE = """
from pydantic import BaseModel, ConfigDict
from rlrun.plugins.types import Row


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prefix: str


class Remote:
    Params = Params
    api_version = 1

    def __init__(self, params):
        self.params = params

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return Row(id="0", prompt=self.params.prefix)

    def __iter__(self):
        return iter([self[0]])
"""


def test_sources_read_copies_of_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    address = f"file://{tmp_path}/rows.jsonl"
    mixture = {"sources": [{"type": "jsonl", "path": f"{address}@[1:]", "weight": 1}]}
    assert not is_here("mixture", mixture)
    with pytest.raises(PluginError, match="is not on this machine yet: rlrun launch copies it"):
        checked_params("data", "jsonl", {"path": address})
    stage_data(Spec.model_validate({"model": {"path": "m"}, "data": {"type": "mixture", **mixture}}), print)
    assert is_here("mixture", mixture)
    assert [row.prompt for row in build("data", "jsonl", {"path": f"{address}@[1:]"})] == ["b"]
    assert Path(checked_params("data", "jsonl", {"path": address}).path).is_relative_to(tmp_path / "cache")


def test_addresses_that_a_source_reads_itself_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    (tmp_path / "source.py").write_text(SOURCE)
    data = {"type": f"{tmp_path}/source.py:Remote", "prefix": f"file://{tmp_path}/nothing"}
    stage_data(Spec.model_validate({"model": {"path": "m"}, "data": data}), print)
    assert is_here(data["type"], data)
    assert [row.prompt for row in build("data", data["type"], {"prefix": data["prefix"]})] == [data["prefix"]]


def test_an_environment_of_ones_own_is_no_data_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    (tmp_path / "world.py").write_text("raise SystemExit('imported in the driver')")
    data = {"type": "environment", "environment": {"type": f"{tmp_path}/world.py:World"}}
    stage_data(Spec.model_validate({"model": {"path": "m"}, "data": data}), print)
