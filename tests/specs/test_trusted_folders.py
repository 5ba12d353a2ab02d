"""Plugin files in a folder that the user trusts, and everything that looks like one."""

import os
from pathlib import Path

import pytest

from rlrun.models import ownership
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.trusted_folders import danger_of, store_trusted_folders, trust_file, trusted_folders

BASE = Path(__file__).parent / "base.toml"
REWARD = """
from pathlib import Path

import rlrun

Path({ran!r}).touch()


@rlrun.reward
def exact(sample, *, bonus: float = 0.0) -> float:
    return {score}
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(ALLOW_LOCAL, raising=False)


def make(folder: Path, reward: str = "mine.py") -> Path:
    """Returns a spec with a reward in a file beside it, which leaves `ran` in its folder when it runs."""
    folder.mkdir(mode=0o755, parents=True)
    (folder / "mine.py").write_text(REWARD.format(ran=str(folder / "ran"), score=1.0))
    spec = folder / "job.toml"
    spec.write_text(f'extends = "{BASE}"\n[[rewards]]\ntype = "{reward}:exact"\n')
    return spec


def is_refused(spec: Path, message: str = "is code outside any installed package") -> bool:
    """Returns whether a spec is refused with this message, and no plugin file has run."""
    with pytest.raises(SpecError, match=message):
        load_checked_spec([spec])
    return not list(spec.parents[1].rglob("ran"))


def test_a_trusted_folder_needs_no_flag_also_when_its_files_change(tmp_path: Path) -> None:
    spec = make(tmp_path / "own" / "jobs")
    assert is_refused(spec, "or rlrun plugins trust .* once and for all")
    store_trusted_folders([tmp_path / "own"])
    assert load_checked_spec([spec]).spec.rewards[0].type == f"{spec.parent / 'mine.py'}:exact"
    assert os.environ[ALLOW_LOCAL] == str(spec.parent / "mine.py")  # for the processes of the job
    (spec.parent / "mine.py").write_text(REWARD.format(ran="x", score=0.5))
    load_checked_spec([spec])


def test_another_folder_is_not_trusted(tmp_path: Path) -> None:
    load_trusted(tmp_path)
    assert is_refused(make(tmp_path / "own-not" / "jobs"))  # whose name begins with the trusted one's


def load_trusted(tmp_path: Path) -> Path:
    """Reads a trusted spec, after which this process may run its file."""
    spec = make(tmp_path / "trusted" / "own")
    store_trusted_folders([spec.parent])
    load_checked_spec([spec])
    (spec.parent / "ran").unlink()
    return spec


@pytest.mark.parametrize("reward", ["{}/mine.py", "{}/../other/mine.py", "../trusted/own/../own/mine.py"])
def test_a_spec_from_elsewhere_has_no_part_in_the_trust(tmp_path: Path, reward: str) -> None:
    folder = tmp_path / "trusted" / "own"
    make(folder)
    store_trusted_folders([folder])
    assert is_refused(make(tmp_path / "trusted" / "other", reward.format(folder)))


def test_a_spec_in_the_folder_cannot_name_files_outside(tmp_path: Path) -> None:
    make(tmp_path / "all" / "other")
    spec = make(tmp_path / "all" / "own", "../other/mine.py")
    store_trusted_folders([spec.parent])
    assert is_refused(spec)


def test_links_are_not_followed(tmp_path: Path) -> None:
    own, other = make(tmp_path / "all" / "own"), make(tmp_path / "all" / "other")
    store_trusted_folders([own.parent])
    (tmp_path / "all" / "link").symlink_to(own.parent)
    assert is_refused(tmp_path / "all" / "link" / "job.toml")  # a folder that leads into the trusted one
    (own.parent / "mine.py").unlink()
    (own.parent / "mine.py").symlink_to(other.parent / "mine.py")
    assert is_refused(own, "is named through a link")  # a file that leads out of it


@pytest.mark.parametrize("inner", ["", "jobs", "jobs/mine.py"])
@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_what_others_may_write_is_refused(
    tmp_path: Path, inner: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "is_own_group", lambda gid: False)
    folder = tmp_path / "all" / "own"
    spec = make(folder / "jobs")
    store_trusted_folders([folder])
    (folder / inner).chmod(mode)
    assert is_refused(spec, "its folder is trusted, but others may write")


def test_a_folder_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    spec = make(tmp_path / "all" / "own")
    (tmp_path / "all").chmod(0o777)
    assert "others may replace" in str(danger_of(spec, spec.parent))


def test_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make(tmp_path / "all" / "own")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if spec.stat().st_uid == 0:  # root's files are trusted
        os.chown(spec, 54321, -1)
    assert "belongs to another user" in str(danger_of(spec, spec.parent))


@pytest.mark.parametrize("text", ["[]", '{"folders": 3}', "{"])
def test_a_list_that_is_not_one_trusts_nothing(tmp_path: Path, text: str) -> None:
    store_trusted_folders([tmp_path])
    trust_file().write_text(text)
    assert trusted_folders() == []


def test_a_list_that_others_may_write_trusts_nothing(tmp_path: Path) -> None:
    spec = make(tmp_path / "all" / "own")
    store_trusted_folders([spec.parent])
    trust_file().chmod(0o666)
    assert is_refused(spec)


def test_a_profile_that_is_not_chosen_may_name_a_file(tmp_path: Path) -> None:
    spec = make(tmp_path / "all" / "own")
    spec.write_text(f'extends = "{BASE}"\n[[profiles.own.rewards]]\ntype = "mine.py:exact"\n')
    assert is_refused(spec)
    store_trusted_folders([spec.parent])
    load_checked_spec([spec])
