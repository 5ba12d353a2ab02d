"""What `rlrun eval` evaluates: the model of a spec, a folder, or what a run trained.

SPEC        ──▶ its own model ┐
MODEL       ──▶ the folder    ┼──▶ sources of a spec, whose [[eval.datasets]] are those of --spec, of
RUN         ──▶ RUN/model     │    --data, or of the spec or run itself
RUN@STEP    ──▶ a checkpoint  ┘
http://…  ──▶ [eval.server], beside --spec or --data
"""

import os
import re
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.cli.arguments import spec_path
from rlrun.cli.data_sections import evaluation_of_data
from rlrun.cli.run_states import BEST, best_step, run_of, split_step
from rlrun.models.json_files import parse_json
from rlrun.runner.records.lock import launched_spec, read_lock
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.paths import display_path
from rlrun.specs.problems.findings import SpecText
from rlrun.specs.reading.literal_secrets import mask_secrets
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.sections.evaluation import server_address, server_key

_OF_TRAINING = ("debug", "sweep", "name", "runs_dir", "checkpoint")
"""Sections of a run's spec that its evaluation does not take over."""
_LIST_SECONDS, _MAX_LIST_BYTES = 30.0, 4 << 20
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
class Sets:
    """Published sets to evaluate on (rlrun/specs/benchmarks.toml)."""

    names: tuple[str, ...]
    samples: int
    """Samples per prompt."""

    @property
    def toml(self) -> str:
        """Returns the sections of a spec that evaluates on these sets."""
        tables = [
            f'[[eval.datasets]]\nname = {as_toml(name)}\ntype = "benchmark"\n'
            f"samples_per_prompt = {self.samples}\n"
            for name in self.names
        ]
        return f'[data]\ntype = "benchmark"\nset = {as_toml(self.names[0])}\n{"".join(tables)}'


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
    settings: tuple[str, ...] = ()
    """Further settings of the evaluation's spec, as of `--set`; not empty for a model on a server."""

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
                f"{target} is a model: say what to evaluate it on, with --spec SPEC, --data FILE or "
                "--benchmark SET"
            )
        return EvaluatedModel(target, Path(target).absolute().name, target)
    if step is not None and not Path(target).exists():
        raise ValueError(f"there is no run {name} in {runs_dir}")
    return EvaluatedModel(f"the model of {target}", "")


def is_server(target: str) -> bool:
    """Returns whether a TARGET is the address of a running server."""
    return target.startswith(("http://", "https://"))


def find_served(url: str, name: str | None, key_variable: str | None) -> EvaluatedModel:
    """Returns the model at an address; without a name, the only one that the server lists.

    Raises ValueError if the address or the key cannot be used, or if the server does not list one model.
    """
    key = None
    if key_variable is not None:
        if not (value := os.environ.get(key_variable)):
            raise ValueError(f"--api-key-env: the environment variable {key_variable} is not set")
        try:
            key = server_key(value)
        except ValueError as error:
            raise ValueError(f"--api-key-env {key_variable}: {error}") from None
    try:
        server_address(url)
    except ValueError as error:
        raise ValueError(f"{mask_secrets(url)} {error}") from None
    if name is None:
        names = _listed_models(url, key)
        if len(names) != 1:
            listed = f"the models {', '.join(names)}" if names else "no model"
            raise ValueError(f"{url} lists {listed}: name the model with --served-model")
        [name] = names
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"
    settings = [f"eval.server.url={as_toml(url)}", f"eval.server.model={as_toml(name)}"]
    if key_variable is not None:
        settings.append(f'eval.server.api_key="${{env:{key_variable}}}"')
    return EvaluatedModel(f"{name} at {url}", plain, plain, settings=tuple(settings))


def _listed_models(url: str, key: str | None) -> list[str]:
    """Returns the names of the models that a server has. Raises ValueError if it does not say."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_LIST_SECONDS) as answer:
            models = parse_json(answer.read(_MAX_LIST_BYTES))["data"]
        return [str(model["id"]) for model in models]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{url} does not say which models it has ({error}): start it, correct the address (as a rule it "
            "ends in /v1), or name the model with --served-model"
        ) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, which would send the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Returns no request, so that the status is an error."""


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
    target: str, model: EvaluatedModel, spec: str | None, rows: Rows | Sets | None, folder: Path
) -> list[Path | SpecText]:
    """Returns the documents of the evaluation's spec. `folder`: where a checkpoint is converted to."""
    path = str(folder.absolute()) if model.checkpoint else model.path
    if rows is not None:
        assert path is not None, "--data and --benchmark are refused beside a spec"
        head = f"model.path = {as_toml(path)}\ntrainer.steps = 1\n"  # a spec must say how long it trains
        if isinstance(rows, Sets):
            return [SpecText("rlrun eval", head + rows.toml, Path.cwd())]
        datasets = evaluation_of_data(rows.file, rows.prompt_key, rows.label_key, rows.reward)
        text = f"{head}{datasets}samples_per_prompt = {rows.samples}\n"
        return [SpecText("rlrun eval", text, Path.cwd())]
    if spec is not None or model.run is None:
        sources: list[Path | SpecText] = [spec_path(spec or target)]
        if path is not None and not model.settings:
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
