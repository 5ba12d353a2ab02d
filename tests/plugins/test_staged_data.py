from pathlib import Path

import pytest

from rlrun.plugins.registry import PluginError, build, checked_params
from rlrun.plugins.staged_data import is_here, stage_data
from rlrun.specs.sections.job import Spec


def test_sources_read_copies_of_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    address = f"file://{tmp_path}/rows.jsonl"
    mixture = {"sources": [{"type": "jsonl", "path": f"{address}@[1:]", "weight": 1}]}
    assert not is_here(mixture)
    with pytest.raises(PluginError, match="is not on this machine yet: rlrun launch copies it"):
        checked_params("data", "jsonl", {"path": address})
    stage_data(Spec.model_validate({"model": {"path": "m"}, "data": {"type": "mixture", **mixture}}), print)
    assert is_here(mixture)
    assert [row.prompt for row in build("data", "jsonl", {"path": f"{address}@[1:]"})] == ["b"]
    assert Path(checked_params("data", "jsonl", {"path": address}).path).is_relative_to(tmp_path / "cache")
