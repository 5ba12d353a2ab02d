"""Fills in what an evaluation on a published set leaves open: which set it is, and the reward."""

from typing import Any

from rlrun.specs.benchmarks import benchmarks


def fill_in_benchmarks(data: dict[str, Any]) -> None:
    """Sets `set` of each `[[eval.datasets]]` with `type = "benchmark"` to its name, and `rewards` to the
    set's reward, where they are not given.
    """
    evaluation = data.get("eval")
    datasets = evaluation.get("datasets") if isinstance(evaluation, dict) else None
    for dataset in datasets if isinstance(datasets, list) else ():
        if not isinstance(dataset, dict) or dataset.get("type") != "benchmark":
            continue
        if "set" not in dataset and "name" in dataset:
            dataset["set"] = dataset["name"]
        benchmark = benchmarks().get(dataset["set"]) if isinstance(dataset.get("set"), str) else None
        if benchmark is not None and "rewards" not in dataset:
            dataset["rewards"] = [dict(benchmark.reward)]
