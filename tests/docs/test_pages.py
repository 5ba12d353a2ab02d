"""The documentation names nothing that does not exist: files, keys, plugins, commands, options, modules."""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli
import typer
from pydantic import BaseModel

from rlrun.cli.main import ENTRY_POINTS, make_app
from rlrun.cli.schema import spec_schema
from rlrun.plugins.kinds import METHODS
from rlrun.plugins.registry import entries, load
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.problems.suggestions import KeyIndex, section_models
from rlrun.specs.sections.job import Spec
from tests.docs.pages import PAGES, ROOT, Page

pages = pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.path.name)

PLUGIN_TABLES = {
    "algorithm": "algorithms",
    "data": "data",
    "eval.datasets": "data",
    "rollout.function": "rollouts",
    "rollout.function.tools": "tools",
    "rollout.function.agent": "agents",
    "data.environment": "environments",
    "eval.datasets.environment": "environments",
    "rollout.buffer": "buffers",
    "rewards": "rewards",
    "filters": "filters",
    "hooks": "hooks",
    "trackers": "trackers",
}
OF_EXAMPLES = {"wordcount", "my_agent", "my_algorithm"}
"""Plugins that pages show how to write."""
WRONG_ON_PURPOSE = {"temprature", "learning_rate"}
"""Keys with which docs/first-job.md shows what an error looks like."""
OF_OTHERS = {
    "--enable-mtp-training",  # slime
    "--nnodes", "--node-rank", "--dist-init-addr", "--enable-memory-saver",  # SGLang's
    "--custom-weight-loader",  # SGLang's
    "--enable-fp32-lm-head", "--enable-draft-weights-cpu-backup",  # SGLang's
    "--speculative-num-draft-tokens", "--speculative-num-steps",  # SGLang's
    "--qos", "--exclusive", "--container-image",  # sbatch's and srun's
    "--dump-details", "--use-miles-dashboard",  # miles's
    "--rlrun-check", "--model",  # pytest's, as our plugin adds it; the engine's as a program
}  # fmt: skip
"""Options of other programs."""


@pages
def test_links_lead_somewhere(page: Page) -> None:
    for target in page.links():
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file).resolve() if file else page.path
        assert path.exists(), target
        assert not anchor or anchor in Page(path).anchors(), target


@pages
def test_files_exist(page: Page) -> None:
    names = file_names()
    for span in page.spans() if not of_slime(page) else ():
        if re.fullmatch(r"(rlrun|tests|benchmarks|examples|packages|docs)/[\w./-]+", span):
            assert (ROOT / span).exists(), span
        elif re.fullmatch(r"runner/[\w./-]+", span):
            assert (ROOT / "rlrun" / span).exists(), span
        elif re.fullmatch(r"\w+\.py", span) and page.path.parent == ROOT / "docs":
            assert span in names, span


@pages
def test_keys_exist(page: Page) -> None:
    known, sections, free_of_keys = keys(), set(Spec.model_fields), free_tables()
    for span in page.spans():
        table = re.fullmatch(r"\[+([a-z_.]+)\]+", span)
        key = table[1] if table else re.sub(r"\.\d+(?=\.|$)", "", span.partition(" = ")[0])
        if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", key) and key.partition(".")[0] in sections:
            free = any(key.startswith(f"{name}.") for name in free_of_keys)
            assert free or key in known or key.endswith((".py", ".toml", ".json")), span
        elif table:
            assert key in known or key in ("profiles", "vars", "teacher.parallel"), span


@pages
def test_types_exist(page: Page) -> None:
    known = types() | OF_EXAMPLES
    for span in page.spans():
        if (found := re.search(r'\btype = "([\w.]+)"', span)) and "description" not in span:
            assert found[1] in known, span


@pages
def test_specs_have_no_unknown_keys(page: Page, tmp_path: Path) -> None:
    """Skips errors.md, whose specs are wrong on purpose: tests/cli/test_explain.py checks them."""
    for number, code in enumerate(page.blocks("toml") if page.path.name != "errors.md" else ()):
        table = tomli.loads(code)
        file = tmp_path / f"{number}.toml"
        file.write_text(code if "extends" in table else f'extends = "package:quickstart.toml"\n{code}')
        for problem in problems(file):
            if re.search(r"unknown key|belongs to|must be|is no table", problem.message):
                assert problem.key.rpartition(".")[2] in WRONG_ON_PURPOSE, problem
            elif "there is no" in problem.message and problem.key.endswith(".type"):
                assert problem.found.strip('"') in OF_EXAMPLES or ".py:" in problem.found, problem


@pages
def test_commands_and_options_exist(page: Page) -> None:
    if of_slime(page):
        return
    app = application()
    for words in page.commands():
        command = app
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        assert command is not app or words[0].startswith("-"), f"rlrun {' '.join(words)}"
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        for word in words:
            known = not word.startswith("-") or word.partition("=")[0] in options | {"-", "-h", "--help"}
            assert known, words
    known = known_options()
    for span in page.spans():
        if span.startswith("--"):
            assert re.split(r"[ =]", span)[0] in known, span


@pages
def test_modules_exist(page: Page) -> None:
    groups = {ENTRY_POINTS, *(f"rlrun.{kind}" for kind in METHODS)}
    for span in page.spans():
        if re.fullmatch(r"rlrun(\.\w+)+", span) and span not in groups and not span.endswith(".json"):
            assert resolves(span), span


@pages
def test_recipes_and_targets_exist(page: Page) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in page.commands():
        for spec in words[1:2] if words[0] in ("launch", "plan", "validate") else ():
            if re.fullmatch(r"[a-z][\w-]*", spec):
                assert (RECIPES / f"{spec}.toml").exists(), words
    for span in page.spans():
        if found := re.fullmatch(r"make ([\w-]+)", span):
            assert found[1] in targets, span


@cache
def keys() -> set[str]:
    index = KeyIndex(Spec)
    for table, kind in PLUGIN_TABLES.items():
        for entry in entries(kind):
            if entry.distribution == "rlrun":
                index.add(load(kind, entry.name).Params, f"{table}.")
    found = {*index.paths(), *(f"{table}.type" for table in PLUGIN_TABLES)}
    return found | {path.rpartition(".")[0] for path in found}


@cache
def free_tables() -> set[str]:
    """Tables whose keys are not the spec's own."""
    return set(_free_tables(Spec))


def _free_tables(model: type[BaseModel], place: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if "dict[" in str(field.annotation):
            yield f"{place}{name}"
        for inner in section_models(field.annotation):
            yield from _free_tables(inner, f"{place}{name}.")


def of_slime(page: Page) -> bool:
    """Whether a page is about another trainer's options and files."""
    return page.path.name.startswith("slime")


@cache
def types() -> set[str]:
    """Every value that the spec's schema lists."""
    found = re.findall(r'"(?:const|enum)": (\[[^\]]*\]|"[^"]*")', json.dumps(spec_schema()))
    values = [json.loads(each) for each in found]
    return {str(one) for each in values for one in (each if isinstance(each, list) else [each])}


def problems(file: Path) -> tuple[Any, ...]:
    try:
        load_checked_spec([file])
    except SpecError as error:
        return error.problems
    return ()


@cache
def application() -> Any:
    return typer.main.get_command(make_app([]))


@cache
def known_options() -> set[str]:
    """The options of rlrun, of the benchmarks, and of other programs."""
    benchmarks = " ".join(path.read_text("utf-8") for path in files("benchmarks"))
    return (
        every_option(application()) | OF_OTHERS | {f"--{word}" for word in re.findall(r"[\w-]+", benchmarks)}
    )


def every_option(command: Any) -> set[str]:
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union(*(every_option(each) for each in getattr(command, "commands", {}).values()))


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, leaf = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return bool(module) and hasattr(import_module(module), leaf)
    return True


@cache
def file_names() -> set[str]:
    folders = ("rlrun", "tests", "benchmarks", "examples", "packages")
    return {path.name for folder in folders for path in files(folder)}


def files(folder: str) -> list[Path]:
    return [*(ROOT / folder).rglob("*.py")]
