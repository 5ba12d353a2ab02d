"""Checks the files and packages that a spec names, in a fraction of a second before a launch.

    model.path ──▶ family, tokenizer, chat template ┐
    data       ──▶ a few rows, as rewards need them ┼──▶ problems at their keys in the spec
    trackers, torchao's settings ──▶ their packages ┘

Nothing here imports torch or a tokenizer, so that `rlrun validate` stays fast; `rlrun launch` runs these
checks before it claims a run folder.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rlrun.models.config_defaults import text_config
from rlrun.models.config_json import read_config
from rlrun.models.hub import cached_config, download
from rlrun.models.transformers_models import read_model
from rlrun.plugins.data.columns import LABEL_NAMES, RESPONSE_NAMES, likely
from rlrun.plugins.data.rows import RowKeys
from rlrun.plugins.registry import PluginError, checked_params, load
from rlrun.plugins.row_checks import row_check
from rlrun.plugins.types import Needs, Row
from rlrun.plugins.validation import needs_of
from rlrun.runner.engines.native.model.config import engine_architecture
from rlrun.runner.prompts.template_files import template_problem
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.lengths import fit_to_model
from rlrun.specs.problems.findings import Finding, SpecError
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.rules.optimizer_rules import optimizer_sections
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec

ROWS = 64
"""How many rows of each source are checked."""
TOLERATED_SHARE = 0.1
"""Up to this share of so few rows may be broken by chance, even if `data.max_bad_share` is lower."""
_NAMING_KEYS = ("path", "task", "taskset")
"""Keys that name what a data source reads."""

RowCheck = Callable[[Row], None]


def check_files(loaded: LoadedSpec, *, online: bool = False) -> None:
    """Raises SpecError with every problem of the model's and the data's files and of optional packages.

    `online`: the config.json of a model on the hub is downloaded. Otherwise it is checked only if it is in
    the cache.
    """
    spec = loaded.spec
    findings = [*_model(spec, online), *_data(spec), *_trackers(spec), *_torchao(spec)]
    if findings:
        raise SpecError([loaded.composition.locate(finding) for finding in findings])


def fitted_to_model(spec: Spec) -> Spec:
    """Returns the spec with the prompt limit of its model, if the model's folder is on this host already."""
    folder = Path(spec.model.path)
    try:
        config = text_config(read_config(folder)) if folder.is_dir() else {}
        positions = config.get("max_position_embeddings")
    except ValueError:
        positions = None
    return fit_to_model(spec, positions if isinstance(positions, int) else None)


def _model(spec: Spec, online: bool) -> Iterator[Finding]:
    """Checks a local folder, and the family of a model on the hub, whose other files are not here yet."""
    folder, path = Path(spec.model.path), ("model", "path")
    if not folder.is_absolute() or not folder.is_dir():
        on_hub = None if folder.is_absolute() else _config_from_hub(spec, online)
        if on_hub is not None and (family_problem := _family_problem(spec, on_hub)):
            yield Finding(path, f"{spec.model.path}: {family_problem}")
        return
    if family_problem := _family_problem(spec, folder):
        yield Finding(path, family_problem)
    sources = [spec.data, *spec.eval.datasets]
    if problem := template_problem(folder, template=any(source.apply_chat_template for source in sources)):
        yield Finding(path, problem)


def _config_from_hub(spec: Spec, online: bool) -> Path | None:
    """Returns a folder with the config.json of a model on the hub; None if there is none.

    Why a download fails is reported when the whole model is downloaded.
    """
    if not online:
        return cached_config(spec.model.path, spec.model.revision)
    try:
        return download(spec.model.path, ["config.json"], spec.model.revision)
    except ValueError:
        return None


def _family_problem(spec: Spec, folder: Path) -> str:
    """Returns why the trainer or the native engine cannot compute a model; empty if they can.

    `folder` needs only the model's config.json, except for a model that transformers computes.
    """
    try:
        if spec.model.implementation == "torchtitan" or list(folder.glob("*.safetensors")):
            read_model(folder, spec.model.implementation)
        if spec.engine.type == "native" and layout_of(spec, needs_of(spec).rollout).engines:
            engine_architecture(folder)
    except ValueError as error:
        return str(error)
    return ""


def _trackers(spec: Spec) -> Iterator[Finding]:
    """Yields a finding for each tracker whose packages are not installed: it would fail at the first step."""
    for number, tracker in enumerate(spec.trackers):
        packages = getattr(load("trackers", tracker.type), "packages", ())
        if missing := [package for package in packages if find_spec(package) is None]:
            extra = "run" if "torch" in missing else "trackers"
            yield Finding(
                ("trackers", number, "type"),
                f'the tracker "{tracker.type}" needs {" and ".join(missing)}, which is not installed',
                f"pip install 'rlrun[{extra}]', or remove the tracker",
            )


def _torchao(spec: Spec) -> Iterator[Finding]:
    """Yields a finding for each setting that needs torchao, if it is not installed."""
    if find_spec("torchao") is not None:
        return
    if (precision := spec.trainer.precision) is not None:
        message = f'"{precision}" needs torchao, which is not installed'
        cure = "pip install 'rlrun[low-precision]', or remove trainer.precision"
        yield Finding(("trainer", "precision"), message, cure)
    for name, section in optimizer_sections(spec):
        if section.optimizer == "adamw_8bit":
            message = '"adamw_8bit" needs torchao, which is not installed'
            cure = "pip install 'rlrun[low-precision]', or choose \"adamw\""
            yield Finding((name, "optimizer"), message, cure)
    if spec.trainer.lora is not None and spec.trainer.lora.base is not None:
        message = f'"{spec.trainer.lora.base}" needs torchao, which is not installed'
        yield Finding(
            ("trainer", "lora", "base"), message, "pip install 'rlrun[low-precision]', or remove it"
        )


def _data(spec: Spec) -> Iterator[Finding]:
    needs = needs_of(spec)
    try:
        check = _prompt_check(spec) if needs.rollout else _demonstration_check(needs)
    except PluginError as error:
        yield Finding(("rewards",), str(error))
        return
    yield from _source(("data",), spec.data, check, needs)
    for number, dataset in enumerate(spec.eval.datasets):
        yield from _source(("eval", "datasets", number), dataset, check, needs)


def _source(path: KeyPath, source: DataSpec, check: RowCheck, needs: Needs) -> Iterator[Finding]:
    kind = load("data", source.type)
    if not hasattr(kind, "preview"):
        return
    at = (*path, next((key for key in _NAMING_KEYS if key in source.params), "type"))
    try:
        params = checked_params("data", source.type, source.params)
        outcomes = [_outcome(row, check) for row in kind.preview(params, ROWS)]
    except (ImportError, ValueError) as error:
        yield Finding(at, str(error))
        return
    broken = [error for error in outcomes if error is not None]
    if len(broken) > max(source.max_bad_share, TOLERATED_SHARE) * len(outcomes):
        message = f"{len(broken)} of the {len(outcomes)} rows looked at cannot be used: {broken[0]}"
        yield Finding(at, message, _missing_key(kind, params, needs, str(broken[0])))


def _outcome(row: Row | ValueError, check: RowCheck) -> ValueError | None:
    """Returns what is wrong with a row; None if it can be used."""
    if isinstance(row, ValueError):
        return row
    try:
        check(row)
    except ValueError as error:
        return error
    return None


def _prompt_check(spec: Spec) -> RowCheck:
    """Returns a check that a row does not end with an answer, and that the rewards can score it."""
    check_for_rewards = row_check(spec.rewards)

    def check(row: Row) -> None:
        if not isinstance(row.prompt, str) and row.prompt[-1].get("role") == "assistant":
            raise ValueError(
                f"row {row.id}: its messages end with an answer, so that the policy would answer itself: "
                'leave the answer out, or train on the answers with algorithm.type = "sft"'
            )
        check_for_rewards(row)

    return check


def _demonstration_check(needs: Needs) -> RowCheck:
    """Returns a check that a row has the response, or the pair of responses, to train on."""

    def check(row: Row) -> None:
        chat = not isinstance(row.prompt, str) and row.prompt[-1].get("role") == "assistant"
        if row.response is None and (needs.pairs or not chat):
            raise ValueError(f"row {row.id} has no demonstration; set response_key")
        if needs.pairs and row.rejected is None:
            raise ValueError(f"row {row.id} has no rejected answer; set rejected_key")

    return check


def _missing_key(kind: type, params: object, needs: Needs, problem: str) -> str | None:
    """Returns the key to set, if the names of the columns suggest one for the missing value."""
    if not isinstance(params, RowKeys) or not hasattr(kind, "columns"):
        return None
    key, names = ("label_key", LABEL_NAMES) if needs.rollout else ("response_key", RESPONSE_NAMES)
    columns = kind.columns(params)
    if key not in problem:
        return None
    if getattr(params, key) in columns:
        return f"{key} is {getattr(params, key)!r} already: fill that in, or leave the rows without it out"
    if column := likely(columns, names):
        return f'the rows have {", ".join(columns)}: {key} = "{column}"'
    return None
