"""Rows of docs/slime-features.md claim only tests, keys and flags that exist, and every flag is in a row."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tomli

from rlrun.converters.slime.flag_table import flag_table
from rlrun.specs.sections.job import Spec
from tests.docs.named_tests import named_tests
from tests.docs.pages import ROOT
from tests.docs.slime_features import (
    DATA,
    PAGE,
    STATUSES,
    find_test,
    is_slow,
    layout_of,
    main,
    moved,
    outcomes,
    page,
    report,
    rows,
)
from tests.docs.test_commands import parse
from tests.docs.test_pages import free_tables, keys, types
from tests.runner.trainer.layouts import BY_NAME

FLAGS_OF_SLIME = (ROOT / "tests/data/slime_flags_main.txt").read_text().split()
FILE_OF_SLIME = re.compile(
    r"(docs/en|examples|scripts|slime|slime_plugins|tests|tools|docker)/\S+|train(_async)?\.py"
)
FIELDS = {"feature", "slime", "rlrun", "status", "note", "tests"}
PROGRAMS = ("--sglang-", "--router-")
"""How arguments begin that slime hands to SGLang's server and router, whatever they are."""


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.docs.slime_features"


def test_the_file_has_no_other_fields_and_no_row_twice() -> None:
    listed = [row for group in tomli.loads(DATA.read_text("utf-8")).values() for row in group]
    assert [row for row in listed if not row.keys() <= FIELDS] == []
    assert len({row["feature"] for row in listed}) == len(listed)


def test_a_status_has_its_proof_or_its_reason() -> None:
    assert [row for row in rows() if row.status not in STATUSES] == []
    assert [row for row in rows() if row.proven and not row.tests] == []
    assert [row for row in rows() if row.status != "works" and not row.note] == []


def test_tests_exist_and_are_run() -> None:
    assert [(row.feature, fault) for row in rows() for fault in map(fault_of, row.tests) if fault] == []


def fault_of(name: str) -> str | None:
    """Returns why a test proves nothing."""
    test, layout = find_test(name), layout_of(name)
    if test is None:
        return f"there is no test {name}; if it moved, run: python -m tests.docs.slime_features"
    if layout is not None and not (layout in BY_NAME and "/test_parity.py" in name):
        return f"{name} is not a layout of the parity tests"
    return f"{name} never runs, or on GPUs only" if test.skipped or test.needs_gpu else None


def test_what_rlrun_has_for_it_exists() -> None:
    assert [row for row in rows() if not row.rlrun and not row.note] == []
    assert [(row.feature, each) for row in rows() for each in row.rlrun if not exists(each)] == []


def exists(named: str) -> bool:
    """Whether rlrun has a command, a key, or a key with this `type`."""
    if named.startswith("rlrun "):
        return bool(parse(re.sub(r"\b[A-Z]{3,}\b", "x", named).split()[1:]))
    key, _, value = named.partition(" = ")
    known = key in keys() | Spec.model_fields.keys()
    known |= any(key.startswith(f"{table}.") for table in free_tables())
    return known and (not key.endswith(".type") or not value or value.strip('"') in types())


def test_flags_and_files_are_slime_s() -> None:
    known = flag_table()
    flags = {(row.feature, each) for row in rows() for each in row.slime if each.startswith("--")}
    assert [pair for pair in flags if pair[1] not in known and not pair[1].startswith(PROGRAMS)] == []
    files = {each for row in rows() for each in row.slime if not each.startswith("--")}
    assert [each for each in files if not FILE_OF_SLIME.fullmatch(each)] == []
    assert [row for row in rows() if not row.slime] == []


def test_every_flag_of_slime_is_in_a_row() -> None:
    named = {each for row in rows() for each in row.slime}
    assert [flag for flag in FLAGS_OF_SLIME if flag not in named] == []


def test_marks_are_read_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\n"
        "long = pytest.mark.slow\n"
        "def test_a(): pass\n"
        "@long\ndef test_b(): pass\n"
        "@pytest.mark.skip(reason='')\ndef test_c(): pass\n"
        "@pytest.mark.xfail\nasync def test_d(): pass\n"
        "@pytest.mark.skipif(True, reason='')\ndef test_e(): pass\n"
        "def test_f():\n    pytest.skip('')\n"
        "def test_g():\n    if test_a:\n        pytest.skip('')\n"
    )
    found = named_tests(file)
    assert [name for name, test in found.items() if test.slow] == ["test_b"]
    assert [name for name, test in found.items() if test.skipped] == ["test_c", "test_d", "test_f"]
    assert "test_g" in found
    whole = tmp_path / "test_whole.py"
    whole.write_text(f"{file.read_text()}pytestmark = [long, pytest.mark.skip]\n")
    assert all(test.slow and test.skipped for test in named_tests(whole).values())


def test_a_test_that_moved_is_found() -> None:
    here = "tests/docs/test_slime_features.py::test_a_test_that_moved_is_found"
    assert moved("tests/old/test_place.py::test_a_test_that_moved_is_found") == here
    assert moved("tests/old/test_place.py::test_that_nobody_wrote") is None


def test_rows_are_proven_by_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written(outcome: str, names: list[str]) -> Path:
        cases = "".join(
            f'<testcase classname="{name.partition("::")[0][:-3].replace("/", ".")}"'
            f' name="{name.partition("::")[2]}{"" if "[" in name else "[x]"}">{outcome}</testcase>'
            for name in names
        )
        path = tmp_path / f"{len(outcome)}.xml"
        path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return path

    names = list(dict.fromkeys(name for row in rows() for name in row.tests))
    all_passed = written("", names)
    assert main([str(all_passed)]) == 0
    claimed = sum(row.proven for row in rows())
    assert f"prove {claimed} of the {claimed} rows" in capsys.readouterr().out
    assert main([str(written("<failure/>", names[:1])), str(all_passed)]) == 1
    first = rows()[0]
    failed = f"failed: {first.group}: {first.feature}: {names[0].partition('::')[2]}\n"
    assert failed in capsys.readouterr().out
    skipped = ElementTree.parse(written("<skipped/>", names[:1])).getroot()
    assert outcomes([skipped]) == {names[0]: "not run", f"{names[0]}[x]": "not run"}
    assert outcomes([skipped, ElementTree.parse(all_passed).getroot()])[names[0]] == "passed"
    lines = report({name: "passed" for name in names if not is_slow(name)}).splitlines()
    assert lines[1:] and all("not run (make test-all): " in line for line in lines[1:])
