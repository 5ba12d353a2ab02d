"""The published sets that evaluations know by name: where they are, what their columns are, what grades them.

benchmarks.toml ─▶ Benchmark ─▶ [[eval.datasets]] with a set and a reward (reading/benchmark_sets.py)
                             └▶ rows (rlrun.plugins.data.benchmark)
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Form = Literal["math", "shuffled_choices", "choices", "instructions", "function", "program"]


class PublishedScore(BaseModel):
    """A score of an open model that its authors published, for comparison."""

    model: str
    value: float
    """In percent."""
    source: str


class Benchmark(BaseModel):
    """One entry of benchmarks.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    repository: str
    """Id of the dataset on the hub."""
    config: str | None = None
    """Configuration of the dataset; None: its only one."""
    file: str | None = None
    """The file of JSON lines to read, for a dataset that needs a script otherwise."""
    split: str
    revision: str
    """Commit on the hub."""
    pinned_by: str
    """Where that commit was found."""
    form: Form
    """How a row becomes a prompt."""
    columns: Mapping[str, str]
    """The set's names of the columns that the form reads."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer, in the column of the answer."""
    reward: Mapping[str, Any]
    """The reward that grades the set: an entry of `[[rewards]]`."""
    prompt_from: str
    """Who published the prompt."""
    score: PublishedScore | None = None


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Returns all sets by name."""
    table = tomllib.loads((Path(__file__).parent / "benchmarks.toml").read_text(encoding="utf-8"))
    return {name: Benchmark.model_validate(entry) for name, entry in table.items()}
