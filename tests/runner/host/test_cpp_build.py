"""Building C++ operators: once, from the cache afterwards, and never fatal."""

import logging

import pytest

from rlrun.runner.host import cpp_build

SOURCE = """
#include <torch/library.h>
TORCH_LIBRARY(rlrun_build_test, m) { m.def("two() -> int", [] { return int64_t(2); }); }
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    cpp_build.load_operators.cache_clear()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "operators.cpp"
    path.write_text(SOURCE)
    return path


def test_the_source_of_the_operators_exists():
    assert cpp_build.OPERATORS.is_file()


def test_builds_once_and_loads(source, tmp_path, monkeypatch):
    if cpp_build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    assert cpp_build.load_operators(source)
    import torch

    assert torch.ops.rlrun_build_test.two() == 2
    (library,) = (tmp_path / "cache" / "operators").glob("*.so")
    cpp_build.load_operators.cache_clear()
    monkeypatch.setattr(cpp_build, "_compile", None)
    assert cpp_build.load_operators(source)
    assert list((tmp_path / "cache" / "operators").glob("*.so")) == [library]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o707])
@pytest.mark.parametrize("what", ["library", "operators", "cache"])
def test_what_others_may_have_written_is_not_loaded(what, mode, source, monkeypatch, caplog):
    if cpp_build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(cpp_build, "_compile", lambda source, compiler, library: library.touch())
    cpp_build.load_operators(source)
    cache = cpp_build.cache_folder()
    assert "may write" not in caplog.text
    library = next((cache / "operators").glob("*.so"))
    path = {"library": library, "operators": library.parent, "cache": cache}[what]
    path.chmod(mode)
    cpp_build.load_operators.cache_clear()
    assert not cpp_build.load_operators(source)
    assert f"others may write {path}: if you trust what is in it, chmod go-w {path}" in caplog.text


def test_what_a_killed_compiler_left_is_removed(source, tmp_path, monkeypatch):
    if cpp_build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path / "cache" / "operators"
    folder.mkdir(parents=True)
    name = f"operators-{cpp_build._key(source, cpp_build.find_compiler())}"
    left, other = folder / f"{name}.abc.tmp", folder / "others-1.abc.tmp"
    for path in (left, other):
        path.touch()
    monkeypatch.setattr(cpp_build, "_compile", lambda source, compiler, library: library.touch())
    cpp_build.load_operators(source)
    assert (left.exists(), other.exists()) == (False, True)


def test_another_header_is_another_library(source):
    compiler = cpp_build.find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    before = cpp_build._key(source, compiler)
    source.with_name("part.h").write_text("// new")
    assert cpp_build._key(source, compiler) != before


def test_says_why_it_cannot_build(source, caplog):
    if cpp_build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    source.write_text("this is not C++")
    assert not cpp_build.load_operators(source)
    assert "plain torch" in caplog.text and "error" in caplog.text


def test_does_without_a_compiler(source, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("RLRUN_NO_COMPILER", "1")
    assert not cpp_build.load_operators(source)
    monkeypatch.delenv("RLRUN_NO_COMPILER")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    cpp_build.load_operators.cache_clear()
    assert not cpp_build.load_operators(source)
    assert "/nowhere/c++" in caplog.text
