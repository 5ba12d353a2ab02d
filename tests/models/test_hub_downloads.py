"""Models of the hub when it cannot be reached: at an address without a server, and in offline mode."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from rlrun.models.hub import cached_config, download


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


def test_a_downloaded_model_is_returned_without_asking_the_hub(cache: Path) -> None:
    assert download("a/here", ["config.json"]) == cache / "models--a--here" / "snapshots" / "c0ffee"


def test_a_cached_config_is_found_without_a_request(cache: Path) -> None:
    assert cached_config("a/here") == cache / "models--a--here" / "snapshots" / "c0ffee"
    assert cached_config("a/there") is None
    assert cached_config("not a model's name") is None


def test_a_missing_model_fails_at_once_if_the_hub_cannot_be_reached(cache: Path) -> None:
    with pytest.raises(
        ValueError, match=r"cannot be reached \(.*refused.*and its files are not in the cache"
    ):
        download("a/gone", ["config.json"])


def test_offline_mode_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set, and its files are not in the cache"):
        download("a/gone", ["config.json"])
