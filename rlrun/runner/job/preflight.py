"""Checks the files and packages that a spec names, in a fraction of a second before a launch.

    model.path ──▶ family, tokenizer, chat template ┐
    data       ──▶ a few rows, as rewards need them ┼──▶ problems at their keys in the spec
    trackers, torchao's settings ──▶ their packages ┘

Nothing here imports torch or a tokenizer, so that `rlrun validate` stays fast; `rlrun launch` runs these
checks before it claims a run folder.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rlrun.converters.families.stored_adapter import StoredAdapter, read_stored_adapter
from rlrun.models.architecture import Architecture
from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.config_json import read_architecture, read_config
from rlrun.models.hub import Say, cached_config, download, say_nothing
from rlrun.models.object_store import INSTALL
from rlrun.models.transformers_models import refuse_unsupported
from rlrun.plugins.registry import load
from rlrun.plugins.validation import needs_of
from rlrun.runner.checkpoints.folder import checkpoints_in, is_checkpoint
from rlrun.runner.engines.native.model.config import by_transformers, own_layers
from rlrun.runner.host.remote_code import code_problem
from rlrun.runner.prompts.row_preview import data_findings, few_rows
from rlrun.runner.prompts.template import template_problem
from rlrun.specs.derived.compared_tokens import vocabulary_problem
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.engine_sections import engine_sections
from rlrun.specs.derived.lora_sync import why_not_beside_policy, why_not_served
from rlrun.specs.derived.policy_model import read_policy
from rlrun.specs.derived.served_adapters import shares_policy, teacher_shares_policy
from rlrun.specs.derived.sglang_arguments import why_not_importable
from rlrun.specs.local_code import is_own_interpreter
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecError, coded
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.rules.family_rules import family_findings
from rlrun.specs.rules.router_rules import launched_arguments
from rlrun.specs.sections.engine import NamedEngineSpec
from rlrun.specs.sections.job import Spec

_MERGE_ADAPTER = "merge it (rlrun convert hf-to-hf SRC DST --lora ADAPTER), and give DST as `path`"


def check_files(loaded: LoadedSpec, *, online: bool = False, say: Say = say_nothing) -> list[Problem]:
    """Returns warnings before a launch; raises SpecError with every problem of the model and the data.

    What this host lacks, such as a package, is a warning, because another host may run the job. So is a
    plugin that remains to be written.

    `online`: a job is about to start. The config.json of a model on the hub is downloaded, otherwise it is
    checked only if it is in the cache; the interpreters of servers are asked for their arguments; and what
    this host lacks, or is not written, is a problem. `say` shows a line before the hub is asked.
    """
    spec = loaded.spec
    if spec.eval.server is not None:
        return _check_served(loaded, online=online)
    findings = [
        *coded(launched_arguments(spec) if online else (), Code.ENGINE),
        *coded(_model(spec, online, say), Code.MODEL),
        *coded(adapter_findings(spec), Code.ADAPTER),
        *coded(_start(spec), Code.CHECKPOINT),
        *coded(data_findings(spec), Code.DATA),
    ]
    until_launch = [
        *loaded.unwritten,
        *coded(_trackers(spec), Code.PACKAGE),
        *coded(_torchao(spec), Code.PACKAGE),
        *coded(_storage(spec), Code.PACKAGE),
        *coded(_servers(spec), Code.ENGINE),
    ]
    if online:
        findings += until_launch
    if findings:
        raise SpecError([loaded.composition.locate(finding) for finding in findings])
    warnings = [] if online else [*until_launch, *coded(few_rows(spec), Code.DATA)]
    return [loaded.composition.locate(finding) for finding in warnings]


def _check_served(loaded: LoadedSpec, *, online: bool) -> list[Problem]:
    """Checks what an evaluation of a model that is served elsewhere reads: rows, and no model."""
    findings = list(coded(data_findings(loaded.spec), Code.DATA))
    until_launch = [*loaded.unwritten, *coded(_trackers(loaded.spec), Code.PACKAGE)]
    if found := [*findings, *(until_launch if online else ())]:
        raise SpecError([loaded.composition.locate(finding) for finding in found])
    return [loaded.composition.locate(finding) for finding in until_launch]


def _model(spec: Spec, online: bool, say: Say) -> Iterator[Finding]:
    """Checks a local folder, and the family of a model on the hub, whose other files are not here yet."""
    folder, path = Path(spec.model.path), ("model", "path")
    if not folder.is_absolute() or not folder.is_dir():
        try:
            on_hub = None if folder.is_absolute() else _config_from_hub(spec, online, say)
        except ValueError as error:
            reason = f"it could not be downloaded from the hub: {error}"
            yield Finding(path, f"{spec.model.path!r} is not a folder, and {reason}")
            return
        if on_hub is not None:
            yield from _model_on_hub(spec, on_hub)
        return
    if family_problem := _family_problem(spec, folder):
        yield Finding(path, family_problem)
    if (code_finding := _code_finding(spec, folder)) is not None:
        yield code_finding
        return
    sources = [spec.data, *spec.eval.datasets]
    if problem := template_problem(folder, template=any(source.apply_chat_template for source in sources)):
        yield Finding(path, problem)


def _start(spec: Spec) -> Iterator[Finding]:
    """Yields a finding if the checkpoint that the run starts from is not there."""
    start = spec.checkpoint.start_from
    if start is None or is_checkpoint(Path(start)):
        return
    steps = ", ".join(map(str, checkpoints_in(Path(start).parent)))
    cure = (
        f"its run has checkpoints of the steps {steps}" if steps else "name its folder: …/checkpoints/step-N"
    )
    yield Finding(("checkpoint", "start_from"), f"{start} is not a checkpoint", cure)


def _model_on_hub(spec: Spec, folder: Path) -> Iterator[Finding]:
    """Checks a model by its config.json; that of a local folder has been checked with the spec."""
    try:
        findings = list(family_findings(spec, read_config(folder)))
    except ValueError:
        findings = []  # reported below
    yield from findings
    if not findings and (family_problem := _family_problem(spec, folder)):
        yield Finding(("model", "path"), f"{spec.model.path}: {family_problem}")


def _code_finding(spec: Spec, folder: Path) -> Finding | None:
    """Returns what is wrong with the Python files of a model folder, or with the trust in them."""
    is_trusted = spec.model.trust_remote_code
    try:
        problem = code_problem(folder, is_trusted=is_trusted)
    except ValueError as error:
        problem = str(error)
    key = "trust_remote_code" if is_trusted else "path"
    return Finding(("model", key), problem) if problem else None


def _config_from_hub(spec: Spec, online: bool, say: Say) -> Path | None:
    """Returns a folder with the config.json of a model on the hub; None if it is not cached and not `online`.

    Raises ValueError, with the reason, if it cannot be downloaded.
    """
    if not online:
        return cached_config(spec.model.path, spec.model.revision)
    return download(spec.model.path, ["config.json"], spec.model.revision, say=say)


def _family_problem(spec: Spec, folder: Path) -> str:
    """Returns why the trainer or the native engine cannot compute a model; empty if they can.

    `folder` needs only the model's config.json.
    """
    try:
        config = read_config(folder)
        if spec.model.implementation == "transformers":
            refuse_unsupported(with_family_defaults(config))
        if spec.model.implementation == "torchtitan" or list(folder.glob("*.safetensors")):
            model = read_policy(folder, spec, needs_of(spec))
            if problem := vocabulary_problem(needs_of(spec), model.vocab):
                return f"top_k of the algorithm {problem}"
            if model.tower is not None and (needs_of(spec).critic or needs_of(spec).scores):
                return (
                    "critics and reward models cannot see images, and this model computes its vision tower: "
                    'set trainer.vision_tower = "none", or choose an algorithm that trains none of them'
                )
        if spec.engine.type == "native" and layout_of(spec, needs_of(spec).rollout).engines:
            if by_transformers(config, folder):
                refuse_unsupported(with_family_defaults(config))
            else:
                own_layers(config, folder)
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


def _servers(spec: Spec) -> Iterator[Finding]:
    """Yields a finding for each kind of SGLang server that this host cannot start.

    An interpreter that the spec names is not asked. Servers of several hosts may be installed elsewhere, and
    an adapter of the policy's servers has none of its own.
    """
    for path, section in engine_sections(spec):
        python = section.python or sys.executable
        elsewhere = spec.cluster.nodes > 1 or shares_policy(section)
        if section.type != "sglang" or elsewhere or not is_own_interpreter(python):
            continue
        if (reason := why_not_importable(python)) is not None:
            cure = "pip install 'rlrun[run,sglang]', or set engine.python to an interpreter that has SGLang"
            yield Finding((*path, "type"), f"{reason} for {python}", cure, at_value=False)


def _storage(spec: Spec) -> Iterator[Finding]:
    """Yields a finding if the package of object stores is not installed, or the hub's token is missing."""
    from huggingface_hub import get_token

    if spec.debug.mode == "eval":
        return
    if spec.checkpoint.push is not None and get_token() is None:
        message = "pushing to the hub needs a token, and there is none"
        cure = "hf auth login, or set HF_TOKEN, or remove checkpoint.push"
        yield Finding(("checkpoint", "push"), message, cure, at_value=False)
    if spec.checkpoint.mirror is not None and find_spec("obstore") is None:
        cure = f"{INSTALL}, or remove checkpoint.mirror"
        message = "object stores need obstore, which is not installed"
        yield Finding(("checkpoint", "mirror"), message, cure, at_value=False)


def _torchao(spec: Spec) -> Iterator[Finding]:
    """Yields a finding for each setting that needs torchao, if it is not installed."""
    if find_spec("torchao") is not None:
        return
    if (precision := spec.trainer.precision) not in (None, "int4_qat"):
        message = f'"{precision}" needs torchao, which is not installed'
        cure = "pip install 'rlrun[low-precision]', or remove trainer.precision"
        yield Finding(("trainer", "precision"), message, cure)
    for name, section in spec.optimizers:
        if section.optimizer == "adamw_8bit":
            message = '"adamw_8bit" needs torchao, which is not installed'
            cure = "pip install 'rlrun[low-precision]', or choose \"adamw\""
            yield Finding((name, "optimizer"), message, cure)
    if spec.trainer.lora is not None and spec.trainer.lora.base is not None:
        message = f'"{spec.trainer.lora.base}" needs torchao, which is not installed'
        yield Finding(
            ("trainer", "lora", "base"), message, "pip install 'rlrun[low-precision]', or remove it"
        )


def adapter_findings(spec: Spec) -> Iterator[Finding]:
    """Yields the problems of adapters of `[[engines]]` and `[teacher]`: their kind, base, ranks and shapes.

    An adapter of a model on the hub is compared with it only if its config.json is in the cache.
    """
    for number, section in enumerate(spec.engines):
        if section.adapter is not None and section.type in ("native", "sglang"):
            path: KeyPath = ("engines", number, "adapter")
            if problem := _adapter_problem(section.adapter, *_model_of(spec, section.path, section.revision)):
                yield Finding(path, problem)
            elif problem := _serving_problem(spec, section):
                yield Finding(path, problem, _MERGE_ADAPTER)
    if spec.teacher is not None and spec.teacher.adapter is not None:
        path = ("teacher", "adapter")
        model = _model_of(spec, spec.teacher.path, spec.teacher.revision)
        if problem := _adapter_problem(spec.teacher.adapter, *model) or _policy_problem(spec):
            yield Finding(path, problem)


def _model_of(spec: Spec, path: str | None, revision: str | None) -> tuple[str, Architecture | None]:
    """Returns a model's path (None: the policy's), and its architecture if this host has its config.json."""
    name, revision = (spec.model.path, spec.model.revision) if path is None else (path, revision)
    folder = Path(name) if Path(name).is_dir() else cached_config(name, revision)
    try:
        return name, None if folder is None else read_architecture(folder)
    except ValueError:  # reported at the model's own key
        return name, None


def _adapter_problem(folder: str, name: str, model: Architecture | None) -> str:
    """Returns why an adapter cannot be used with a model; empty if it can."""
    try:
        stored = read_stored_adapter(Path(folder))
        if model is not None:
            stored.matrices(model)
    except (OSError, ValueError) as error:
        return str(error)
    if _is_hub_id(name) and _is_hub_id(stored.base) and name != stored.base:
        return f"was trained on {stored.base}, and the model is {name}"
    return ""


def _is_hub_id(name: str) -> bool:
    """Returns whether a name is `owner/model`, not a folder."""
    return name.count("/") == 1 and name[0] not in "./~" and not Path(name).exists()


def _serving_problem(spec: Spec, section: NamedEngineSpec) -> str:
    """Returns why SGLang cannot serve an adapter; empty if it can, or a native engine merges it."""
    _, model = _model_of(spec, section.path, section.revision)
    if model is None or section.type != "sglang":
        return ""
    stored = read_stored_adapter(Path(str(section.adapter)))
    if not stored.lists_targets:
        return f"{stored.folder}: SGLang needs a list of matrices as target_modules in adapter_config.json"
    beside = why_not_beside_policy(spec, model.family) if shares_policy(section) else None
    reasons = (why_not_served(targets, model.family) for targets in _targets_by_layer(stored, model))
    return beside or next(filter(None, reasons), "")


def _targets_by_layer(stored: StoredAdapter, model: Architecture) -> Iterable[frozenset[str]]:
    """Returns the adapted matrices of each layer that has any."""
    layers: dict[str, set[str]] = {}
    for adapter in stored.matrices(model):
        layer = ".".join(adapter.matrices[0].name.split(".")[:3])
        layers.setdefault(layer, set()).add(adapter.target)
    return map(frozenset, layers.values())


def _policy_problem(spec: Spec) -> str:
    """Returns why the policy's adapters cannot hold the teacher's; empty if they can, or need not."""
    if not teacher_shares_policy(spec) or spec.teacher is None or spec.trainer.lora is None:
        return ""
    _, model = _model_of(spec, None, None)
    if model is None:
        return ""
    stored = read_stored_adapter(Path(str(spec.teacher.adapter)))
    try:
        stored.check_fits_into(model, spec.trainer.lora.shape)
    except ValueError as error:
        return str(error)
    return ""
