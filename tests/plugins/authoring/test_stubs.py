"""Classes that remain to be written: they load, and a job with them is refused until they are written."""

import ast
import re
from pathlib import Path

import pytest

from rlrun.plugins.authoring.scaffold import TEMPLATES
from rlrun.plugins.authoring.stubs import stub_module
from rlrun.plugins.registry import load
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.preflight import check_files
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.unwritten import Unwritten, class_name

SPEC = """\
[[rewards]]
type = "functions.py:Judge"
"""
REWARD = Unwritten("rewards", "Judge", "slime's --custom-rm-path my.judge")


@pytest.fixture(autouse=True)
def local_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_class_of_every_kind_loads_and_does_nothing_else(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"{kind}_functions.py"
    file.write_text(stub_module([Unwritten(kind, "Own", "the function f")], "run.sh"))
    assert load(kind, f"{file}:Own").unwritten == "the function f"


def test_an_algorithm_keeps_the_methods_and_keys_of_its_base(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(stub_module([Unwritten("algorithms", "Own", "f", "gspo", ("loss",))], "run.sh"))
    own, base = load("algorithms", f"{file}:Own"), load("algorithms", "gspo")
    assert own.Params is base.Params
    assert own.advantages is base.advantages
    del own.unwritten  # as somebody does who believes to be done
    with pytest.raises(NotImplementedError, match=r"Own\.loss remains to be written"):
        own(own.Params()).loss(None)


def test_a_spec_is_valid_with_a_warning_and_launched_only_once_the_class_is_written(tmp_path: Path) -> None:
    spec, file = tmp_path / "job.toml", tmp_path / "functions.py"
    spec.write_text(SPEC)
    text = stub_module([REWARD], "run.sh")
    file.write_text(text)
    loaded = load_checked_spec([RECIPES / "quickstart.toml", spec])
    [warning] = [each for each in check_files(loaded) if "not written" in each.message]
    assert warning.key == "rewards.0.type"
    assert "Judge is not written yet: it replaces slime's --custom-rm-path my.judge" in warning.message
    with pytest.raises(SpecError, match="Judge is not written yet"):
        check_files(loaded, online=True)
    written = tmp_path / "written.py"  # another file, because a module is imported once in a process
    lines = [line for line in text.splitlines() if "unwritten = " not in line]
    written.write_text(re.sub(r"raise NotImplementedError\(.*\)", "return 1.0", "\n".join(lines)))
    spec.write_text(SPEC.replace("functions.py", "written.py"))
    check_files(load_checked_spec([RECIPES / "quickstart.toml", spec]), online=True)


def test_text_of_a_script_stays_text(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    evil = Unwritten("rewards", "Own", 'x"""\n\nraise SystemExit("""\\')
    file.write_text(stub_module([evil], 'a"""\nraise SystemExit.sh'))
    assert load("rewards", f"{file}:Own").unwritten == "x'''raise SystemExit('''/"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("my.reward_func", "RewardFunc"),
        ("a/b.py:f", "PyF"),
        ("x.3d", "Own3d"),
        ("", "Own"),
        ("my.none", "OwnNone"),
        ("f.sample", "OwnSample"),
    ],
)
def test_classes_are_named_after_functions(function: str, name: str) -> None:
    assert class_name(function) == name


@pytest.mark.parametrize("kind", TEMPLATES)
def test_no_class_hides_a_name_that_its_file_imports(kind: str) -> None:
    for node in ast.parse(f"{TEMPLATES[kind].imports}\n{stub_module([REWARD], 'run.sh')}").body:
        for name in node.names if isinstance(node, ast.ImportFrom) else ():
            assert name.name.islower() or class_name(name.name) == f"Own{name.name}"
