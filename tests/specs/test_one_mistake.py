"""One wrong value is one problem: what would follow from it is not reported, too."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError

HERE = Path(__file__).parent
WRONG = "{ of_no_type = 1 }"
FEATURES = {
    "drafts": """
cluster.gpus_per_node = 1
engine.type = "sglang"
engine.speculative = { algorithm = "eagle3", draft_model = "tiny", draft_tokens = 4 }
""",
    "judges": """
rewards = [{ type = "llm_judge", engine = "judge" }]
engines = [{ name = "judge", path = "tiny" }]
""",
    "search": 'sweep = { search = "optuna", trials = 3, keys = { "trainer.lr" = [1e-6, 1e-5] } }',
    "checkpoints": "checkpoint = { interval = 5, keep = 2, asynchronous = true }",
}
"""Settings that depend on each other, for base.toml."""
TAKES_ANYTHING = ("chat_template_args", "task_params", "parameters")
"""Tables whose values may be of any type."""


@pytest.mark.parametrize("name", [*FEATURES, "full", *sorted(file.stem for file in RECIPES.glob("*.toml"))])
def test_a_wrong_value_is_reported_once(name: str, tmp_path: Path) -> None:
    files = files_of(name, tmp_path)
    assert problems(files) == []
    written = list(leaves(tomli.loads(files[-1].read_text("utf-8"))))
    assert written
    for key in written:
        found = problems(files, f"{key}={WRONG}")
        assert len(found) == 1, found
        assert key in found[0]


def files_of(name: str, folder: Path) -> list[Path]:
    if name not in FEATURES:
        return [HERE / "full.toml" if name == "full" else RECIPES / f"{name}.toml"]
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.py", "broken"), dirs_exist_ok=True)
    (folder / "feature.toml").write_text(FEATURES[name], "utf-8")
    return [folder / "base.toml", folder / "feature.toml"]


def problems(files: list[Path], *overrides: str) -> list[str]:
    try:
        load_checked_spec(files, overrides, planning=True)
    except SpecError as error:
        return [f"{problem.key}: {problem.message}" for problem in error.problems]
    return []


def leaves(table: dict[str, Any] | list[Any], path: str = "") -> Iterator[str]:
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            if key not in (*TAKES_ANYTHING, "vars", "profiles"):
                yield from leaves(value, f"{path}{key}.")
        elif key not in ("extends", "type"):  # a table whose type changes loses its other keys
            yield f"{path}{key}"
