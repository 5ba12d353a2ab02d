"""Resolves every key whose default follows from the rest of the spec, from the algorithm or from the model.

    spec as written ─▶ load_spec: rules, dtype of this host ─▶ resolve: models ─▶ plan, driver, ranks, lock

The rules read a spec as it is written. Everything after them gets the result of `resolve`, in which every
`derived` key (rlrun.specs.sections.section) has a value: a default is decided here and nowhere else. Keys
that the spec gives stay as they are, and a resolved spec can be resolved again after another key has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.specs.derived.batch_equation import batch_numbers
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.kept_samples import kept_samples
from rlrun.specs.derived.lengths import longest_prompt
from rlrun.specs.derived.lora_sync import sends_adapters, why_merged
from rlrun.specs.derived.old_policy import choose_old_log_probs
from rlrun.specs.derived.sampling_mask import choose_mask
from rlrun.specs.derived.shared_prefixes import SharingChoice, choose_sharing
from rlrun.specs.derived.weight_sync import bucket_mib, carrier_of
from rlrun.specs.needs import Needs
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.evaluation import SAMPLING_KEYS
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec in which every key has its value."""

    spec: Spec
    reasons: Mapping[str, str]
    """Why derived keys have their values, by dotted key; without those that only repeat another key."""
    sharing: SharingChoice | None
    """The choice of shared prefixes; None if the spec makes it, or if a model is not known."""


def resolve(spec: Spec, needs: Needs, models: Sequence[Architecture]) -> Resolved:
    """Returns the resolved spec. `models`: the policy, with the parts that the trainer computes, and the
    teacher if ranks compute it; shorter where a config.json is not known.

    Raises ValueError with the numbers where the batch equation does not hold.
    """
    reasons: dict[str, str] = {}
    policy = models[0] if models else None
    spec = spec.with_sections(rollout=_rollout(spec, needs, policy, reasons), critic=spec.critic)
    spec = spec.with_sections(eval=_evaluation(spec))
    sharing, has_teacher = None, spec.teacher is not None and spec.teacher.path is not None
    if len(models) == 1 + has_teacher and spec.trainer.given("share_prefixes") is None:
        sharing = choose_sharing(spec, models, rollout=needs.rollout, pairs=needs.pairs)
        reasons["trainer.share_prefixes"] = sharing.reason
    spec = spec.with_sections(
        trainer=_trainer(spec, needs, policy, sharing, reasons),
        engine=_policy_engine(spec, policy, reasons),
        engines=tuple(_named_engine(spec, section) for section in spec.engines),
    )
    unresolved = [key for key, has_value in open_keys(spec) if not has_value]
    assert not unresolved, f"keys without a value: {', '.join(unresolved)}"
    return Resolved(spec, reasons, sharing)


def open_keys(section: Section, path: str = "") -> Iterator[tuple[str, bool]]:
    """Yields the derived keys that a section and the sections inside it leave open, dotted, and whether each
    has been resolved.
    """
    for name in section.open_keys():
        yield path + name, name in section.__dict__
    for name, value in section.__dict__.items():
        for number, inner in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(inner, Section):
                table = f"{name}.{number}" if isinstance(value, tuple) else name
                yield from open_keys(inner, f"{path}{table}.")


def _rollout(spec: Spec, needs: Needs, policy: Architecture | None, reasons: dict[str, str]) -> Any:
    positions = None if policy is None else policy.max_positions
    mask, reasons["rollout.sampling_mask"] = choose_mask(spec, needs)
    reasons["rollout.max_prompt_tokens"] = (
        "the model is not known" if positions is None else f"the model has {positions:,} positions"
    )
    reasons["rollout.oversample"] = "rollout.batch_size"
    return spec.rollout.resolved(
        oversample=spec.rollout.batch_size,
        max_prompt_tokens=longest_prompt(spec, positions),
        sampling_mask=mask,
    )


def _evaluation(spec: Spec) -> Any:
    section = spec.eval.resolved(**{key: getattr(spec.rollout, key) for key in SAMPLING_KEYS})
    defaults = {key: getattr(section, key) for key in SAMPLING_KEYS}
    plugins = {"rewards": spec.rewards, "function": spec.rollout.function}
    datasets = tuple(dataset.resolved(**defaults, **plugins) for dataset in section.datasets)
    return section.with_sections(datasets=datasets)


def _trainer(
    spec: Spec,
    needs: Needs,
    policy: Architecture | None,
    sharing: SharingChoice | None,
    reasons: dict[str, str],
) -> Any:
    batch = batch_numbers(spec, needs.rollout)
    old, reasons["trainer.old_log_probs"] = choose_old_log_probs(spec, needs)
    reasons["trainer.vision_tower"] = "the model's family"
    return spec.trainer.resolved(
        global_batch_size=batch.global_batch_size,
        optimizer_steps=batch.optimizer_steps,
        share_prefixes=sharing is not None and sharing.on,
        vision_tower="none" if policy is None or policy.tower is None else "frozen",
        old_log_probs=old,
    )


def _policy_engine(spec: Spec, policy: Architecture | None, reasons: dict[str, str]) -> EngineSpec:
    carrier, family = carrier_of(spec), None if policy is None else policy.family
    if spec.trainer.lora is not None:
        reasons["engine.lora_sync"] = why_merged(spec, family) or "the engines have the frozen model"
    return spec.engine.resolved(
        kept_samples=kept_samples(spec, spec.engine),
        sleep=sleeps(spec),
        weight_sync=carrier.name if carrier.engines else None,
        weight_bucket=bucket_mib(spec),
        lora_sync="adapters" if sends_adapters(spec, family) else "merged",
    )


def _named_engine(spec: Spec, section: EngineSpec) -> EngineSpec:
    """Returns a section of `[[engines]]`, whose engines do not sleep and never get new weights."""
    return section.resolved(
        kept_samples=kept_samples(spec, section),
        sleep=False,
        weight_sync=None,
        weight_bucket=None,
        lora_sync="merged",
    )
