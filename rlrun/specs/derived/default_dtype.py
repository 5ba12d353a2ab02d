"""Chooses the precision of trainer and engines where the spec leaves it open.

A processor without instructions for bfloat16 emulates them: with AVX-512, a training step in bfloat16 takes
about six times as long as in float32. GPUs and other processors multiply faster in bfloat16.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.engine import Dtype, EngineSpec
from rlrun.specs.sections.job import Spec

TRAINER: KeyPath = ("trainer",)


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """The precision of a section that does not set `dtype`, and the reason for it."""

    dtype: Dtype
    reason: str
    follows_processor: bool = False
    """Whether another processor could have led to another choice."""


DtypeChoices = Mapping[KeyPath, DtypeChoice]
"""The choice for each section that does not set `dtype`."""


def choose_dtypes(spec: Spec, *, native_bfloat16: bool) -> DtypeChoices:
    """Returns the choices. `native_bfloat16`: whether this processor has instructions for bfloat16."""
    choices = {}
    by_host = _of_host(spec, native_bfloat16=native_bfloat16)
    if (dtype := spec.trainer.given("dtype")) is None:
        choices[TRAINER] = _of_trainer(spec, by_host)
        dtype = choices[TRAINER].dtype
    for path, section in engine_sections(spec):
        if section.given("dtype") is None:
            choices[path] = _of_engines(spec, path, section, dtype, by_host)
    return choices


def with_dtypes(spec: Spec, choices: DtypeChoices) -> Spec:
    """Returns the spec with the choices."""

    def chosen(path: KeyPath, section: EngineSpec) -> EngineSpec:
        return section.resolved(dtype=choices[path].dtype) if path in choices else section

    sections = {path: chosen(path, section) for path, section in engine_sections(spec)}
    trainer = spec.trainer.resolved(dtype=choices[TRAINER].dtype) if TRAINER in choices else spec.trainer
    return spec.with_sections(
        trainer=trainer,
        engine=sections.pop(POLICY),
        engines=tuple(sections.values()),
    )


def dtype_lines(spec: Spec, choices: DtypeChoices) -> Iterator[str]:
    """Yields a line for each reason: `trainer.dtype and engine.dtype are float32: this processor …`.

    There are none for jobs on GPUs, where bfloat16 is usual.
    """
    if spec.cluster.gpus_per_node:
        return
    keys: dict[tuple[Dtype, str], list[str]] = {}
    for path, choice in choices.items():
        if path == POLICY and spec.engine.type is None:
            continue  # such a job has no engine that computes
        if path == TRAINER and not spec.debug.trains:
            continue
        name = path[0] if len(path) == 1 else f'[[engines]] "{spec.engines[int(path[1])].name}"'
        keys.setdefault((choice.dtype, choice.reason), []).append(f"{name}.dtype")
    for (dtype, reason), names in keys.items():
        yield f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {dtype}: {reason}"


def _of_host(spec: Spec, *, native_bfloat16: bool) -> DtypeChoice:
    if spec.cluster.gpus_per_node:
        return DtypeChoice("bfloat16", "the job runs on GPUs")
    if native_bfloat16:
        return DtypeChoice("bfloat16", "this processor has instructions for bfloat16", follows_processor=True)
    reason = "this processor has no instructions for bfloat16, which would be several times slower"
    return DtypeChoice("float32", reason, follows_processor=True)


def _of_trainer(spec: Spec, by_host: DtypeChoice) -> DtypeChoice:
    if spec.trainer.precision is not None:
        return DtypeChoice("bfloat16", f'trainer.precision = "{spec.trainer.precision}" needs it')
    if spec.true_on_policy and (dtype := spec.engine.given("dtype")) is not None:
        return DtypeChoice(dtype, "true_on_policy needs the precision of the engines")
    return by_host


def _of_engines(
    spec: Spec, path: KeyPath, section: EngineSpec, trainer: Dtype, by_host: DtypeChoice
) -> DtypeChoice:
    if spec.true_on_policy and path == POLICY:
        return DtypeChoice(trainer, "true_on_policy needs the precision of the trainer")
    if section.type == "external":
        return DtypeChoice("bfloat16", "external engines run on other hosts, where it is usual")
    if section.weight_delta == "elements":
        return DtypeChoice("bfloat16", 'weight_delta = "elements" needs it')
    return by_host
