"""What `rlrun eval` evaluates: the model of a spec, a folder, or what a run trained.

SPEC        ──▶ its own model ┐
MODEL       ──▶ the folder    ┼──▶ sources of a spec, whose [[eval.datasets]] are those of --spec, of
RUN         ──▶ RUN/model     │    --data, or of the spec or run itself
RUN@STEP    ──▶ a checkpoint  ┘
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.cli.arguments import spec_path
from rlrun.cli.data_sections import evaluation_of_data
from rlrun.cli.run_states import BEST, best_step, run_of, split_step
from rlrun.runner.records.lock import launched_spec, read_lock
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.paths import display_path
from rlrun.specs.problems.findings import SpecText
from rlrun.specs.reading.reference import as_toml

_OF_TRAINING = ("debug", "sweep", "name", "runs_dir", "checkpoint")
"""Sections of a run's spec that its evaluation does not take over."""
_OF_STORED_WEIGHTS = ("random_init", "revision", "adapter")
"""Keys of `[model]` about the weights that the run began with."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to evaluate on that are given by options."""

    file: Path
    reward: str
    samples: int
    """Samples per prompt."""
    prompt_key: str | None = None
    label_key: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """The model that an evaluation measures."""

    shown: str
    """What messages call it."""
    name: str
    """Part of the default name of the evaluation's run."""
    path: str | None = None
    """Folder of the model, or its id on the hub; None: the spec names it."""
    run: RunFolder | None = None
    """The run that trained it."""
    step: str | None = None
    """The step of the run's checkpoint; None: the exported model."""

    @property
    def checkpoint(self) -> bool:
        """Whether the model has to be converted from a checkpoint."""
        return self.step is not None


def find_model(target: str, runs_dir: Path, *, has_rows: bool) -> EvaluatedModel:
    """Returns what a TARGET names. `has_rows`: other options name the datasets, so that it may be a model.

    Raises ValueError if it is not there, or has no datasets.
    """
    name, step = split_step(target)
    if run := run_of(target, runs_dir):
        return _trained(run, None)
    if run := run_of(name, runs_dir):
        return _trained(run, step)
    if (Path(target) / "config.json").is_file() or has_rows:
        if not has_rows:
            raise ValueError(
                f"{target} is a model: say what to evaluate it on, with --spec SPEC or --data FILE"
            )
        return EvaluatedModel(target, Path(target).absolute().name, target)
    if step is not None and not Path(target).exists():
        raise ValueError(f"there is no run {name} in {runs_dir}")
    return EvaluatedModel(f"the model of {target}", "")


def _trained(run: RunFolder, step: str | None) -> EvaluatedModel:
    if step == BEST:
        step = str(best_step(run))
    if step is not None:
        return EvaluatedModel(
            f"step {step} of {run.shown}", f"{run.path.absolute().name}-{step}", run=run, step=step
        )
    if not (run.model / "config.json").is_file():
        raise ValueError(
            f"{run.shown} has no exported model, which a run writes at its end: {run.shown}@latest evaluates "
            "its last checkpoint"
        )
    return EvaluatedModel(display_path(run.model), run.path.absolute().name, str(run.model.absolute()), run)


def sources_of(
    target: str, model: EvaluatedModel, spec: str | None, rows: Rows | None, folder: Path
) -> list[Path | SpecText]:
    """Returns the documents of the evaluation's spec. `folder`: where a checkpoint is converted to."""
    path = str(folder.absolute()) if model.checkpoint else model.path
    if rows is not None:
        assert path is not None, "--data is refused beside a spec"
        datasets = evaluation_of_data(rows.file, rows.prompt_key, rows.label_key, rows.reward)
        head = f"model.path = {as_toml(path)}\ntrainer.steps = 1\n"  # a spec must say how long it trains
        text = f"{head}{datasets}samples_per_prompt = {rows.samples}\n"
        return [SpecText("rlrun eval", text, Path.cwd())]
    if spec is not None or model.run is None:
        sources: list[Path | SpecText] = [spec_path(spec or target)]
        if path is not None:
            sources.append(
                SpecText("rlrun eval", f"[model]\npath = {as_toml(path)}\nrandom_init = false\n", Path.cwd())
            )
        return sources
    assert path is not None
    return [launched_spec({"given": _given(model.run, path)})]


def _given(run: RunFolder, path: str) -> Mapping[str, Any]:
    """Returns what the spec of a run says, about the weights in another folder."""
    locked = read_lock(run.lock)
    given = dict(locked.get("given") or locked["spec"])
    weights = {key: value for key, value in given["model"].items() if key not in _OF_STORED_WEIGHTS}
    given = {name: section for name, section in given.items() if name not in _OF_TRAINING}
    if "trainer" in given:  # the adapters are merged into the exported model
        given["trainer"] = {key: value for key, value in given["trainer"].items() if key != "lora"}
    return given | {"model": weights | {"path": path}}


def convert_checkpoint(model: EvaluatedModel, folder: Path) -> None:
    """Writes the Hugging Face folder of a run's checkpoint, unless an earlier launch has written it."""
    from rlrun.cli.convert.execution import find_source, make_plan, write
    from rlrun.converters.families.expected_tensors import STRICT

    assert model.run is not None
    if (folder / "config.json").is_file():
        return
    source, _ = find_source(str(model.run.path), None, model.step, None, whole=False)
    conversion = make_plan(
        source, "hf", dtype=None, quantise=None, group=None, shard_size="5GB", adapter=None, tied=None,
        optimizer=False, lenience=STRICT,
    )  # fmt: skip
    write(conversion, folder, threads=None, memory="4GiB", commit=None, verify=False, dry_run=False)


def remove_converted(folder: Path) -> None:
    """Removes the folder of a converted checkpoint, if there is one."""
    shutil.rmtree(folder, ignore_errors=True)
