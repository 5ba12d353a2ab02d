"""Models of the hub where it cannot be asked: an address at which nobody listens, and offline mode."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from rlrun.models.hub import download


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, with config.json of a/here; the hub itself cannot be reached."""
    folder = tmp_path / "models--a--here"
    snapshot = folder / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_url", lambda name, file, revision: f"http://127.0.0.1:1/{name}/{file}"
    )
    return tmp_path


def test_what_is_here_is_taken_at_once(cache: Path) -> None:
    assert download("a/here", ["config.json"]) == cache / "models--a--here" / "snapshots" / "c0ffee"


def test_what_is_not_here_is_told_at_once(cache: Path) -> None:
    with pytest.raises(
        ValueError, match=r"cannot be reached \(.*refused.*and its files are not in the cache"
    ):
        download("a/gone", ["config.json"])


def test_offline_mode_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set, and its files are not in the cache"):
        download("a/gone", ["config.json"])
