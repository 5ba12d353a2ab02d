"""Models of the hub, with a hub that is not there."""

from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from requests import Response

from rlrun.converters.convert.hub import local_folder, upload
from tests.tiny_models import make_tiny_model


@pytest.fixture
def hub(monkeypatch):
    """Remembers what was asked of it."""
    asked = SimpleNamespace(downloads=[], repos=[], uploads=[], refuses=None)

    def snapshot_download(name, revision, allow_patterns, local_files_only):
        asked.downloads.append((name, revision))
        if asked.refuses:
            raise asked.refuses
        return "/cache/models--a--b/snapshots/c0ffee"

    class Api:
        def create_repo(self, name, private, exist_ok):
            if asked.refuses:
                raise asked.refuses
            asked.repos.append((name, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            asked.uploads.append((repo_id, folder_path))
            return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return asked


def test_a_folder_is_itself(tmp_path, hub):
    assert local_folder(str(tmp_path), None).folder == tmp_path
    assert not hub.downloads


def test_an_id_is_fetched_at_a_revision_and_its_commit_told(hub):
    local = local_folder("a/b", "v1")
    assert (local.commit, hub.downloads) == ("c0ffee", [("a/b", "v1")])


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./b", "a/b/c"])
def test_paths_are_not_looked_for_on_the_hub(name, hub):
    with pytest.raises(ValueError, match="there is no folder"):
        local_folder(name, None)
    assert not hub.downloads


def test_a_hub_that_does_not_answer(hub):
    hub.refuses = LocalEntryNotFoundError("cannot reach it\nmore")
    with pytest.raises(
        ValueError, match=r"a/b is not a folder, and cannot be downloaded from the hub: cannot reach it$"
    ):
        local_folder("a/b", None)


def test_uploading_makes_a_private_model(hub, tmp_path):
    assert upload(tmp_path, "a/b", "a message") == "https://hub/a/b/commit/1"
    assert (hub.repos, hub.uploads) == ([("a/b", True, True)], [("a/b", tmp_path)])
    hub.refuses = HfHubHTTPError("not allowed", response=Response())
    with pytest.raises(ValueError, match="is complete, but the hub did not store it as a/b: not allowed"):
        upload(tmp_path, "a/b", "a message")


def test_the_command_pushes_what_it_wrote(hub, tmp_path, monkeypatch, capsys):
    from rlrun.cli import main

    model = make_tiny_model(tmp_path / "model")
    monkeypatch.setattr(
        "sys.argv", ["rlrun", "convert", "hf-to-hf", str(model), str(tmp_path / "out"), "--push", "a/b"]
    )
    with pytest.raises(SystemExit, match="0"):
        main.run()
    assert "uploaded as https://hub/a/b/commit/1" in capsys.readouterr().out
