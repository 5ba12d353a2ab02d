from pathlib import Path

import pytest

from rlrun.models.hub import cached_config, download
from rlrun.models.staged_files import stage_file, stage_folder, staged_file, staged_folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as an object store; the cache is beside it."""
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "store" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "notes.md").write_text("not needed")
    return folder


def test_only_what_is_needed_is_copied_and_only_once(store: Path) -> None:
    address, said = f"file://{store}", []
    assert staged_folder(address) is None and cached_config(address) is None
    first = download(address, ["config.json"], say=said.append)
    assert [path.name for path in first.iterdir()] == ["config.json"]
    assert cached_config(address) == first
    second = stage_folder(address, ["*.json", "*.safetensors"], said.append)
    assert second == first
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
    assert len(said) == 2 and "(1,000 bytes)" in said[1]


def test_an_object_that_changed_is_copied_again(store: Path) -> None:
    address, said = f"file://{store / 'config.json'}", []
    before = stage_file(address, said.append)
    assert staged_file(address) == before
    (store / "config.json").write_text('{"new": 1}')
    after = stage_file(address, said.append)
    assert after != before and after.read_text() == '{"new": 1}'
    assert staged_file(address) == after


@pytest.mark.parametrize(("name", "message"), [("nothing", ": there is no folder"), ("", " has no objects")])
def test_an_address_without_a_model_is_named_and_not_made(store: Path, name: str, message: str) -> None:
    address = f"file://{store.parent / name}"
    with pytest.raises(ValueError, match=f"{address}{message}"):
        stage_folder(address, ["*"], print)
    assert not (store.parent / "nothing").exists()


def test_an_object_that_is_not_there_is_one_line(store: Path) -> None:
    with pytest.raises(ValueError, match=r"rows.jsonl: .*not found") as error:
        stage_file(f"file://{store}/rows.jsonl", print)
    assert "\n" not in str(error.value)
