"""Converts a verl launch script or configuration to a spec: `rlrun import verl run.sh`.

    file -> reading.py (Hydra's overrides, YAML) -> settings.toml and the rules below -> ImportDraft

verl counts prompts, as rlrun does, in its mini-batches too.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.verl import batch_rules as batches
from rlrun.converters.verl import objective_rules as objective
from rlrun.converters.verl import source_rules as sources
from rlrun.converters.verl.reading import VerlSource, read_source

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": batches.run_name,
    "batches": batches.batches,
    "micro_batches": batches.micro_batches,
    "sampling": batches.sampling,
    "steps": batches.steps,
    "algorithm": objective.algorithm,
    "reduction": objective.reduction,
    "clipping": objective.clipping,
    "kl": objective.kl,
    "distillation": objective.distillation,
    "correction": objective.correction,
    "critic": objective.critic,
    "optimizer": objective.optimizer,
    "schedule": objective.schedule,
    "layout": batches.layout,
    "asynchrony": batches.asynchrony,
    "lora": sources.lora,
    "offload": batches.offload,
    "engine": sources.engine,
    "data": sources.data,
    "evaluation": sources.evaluation,
    "rewards": sources.rewards,
    "filters": batches.filters,
    "checkpoints": batches.checkpoints,
    "trackers": sources.trackers,
}
"""The rules of settings.toml, in the order in which they run."""


@cache
def verl_table() -> SettingTable:
    """Returns verl's settings."""
    return read_table(Path(__file__).parent, "verl")


def import_file(path: Path) -> ImportDraft:
    """Returns the spec of a shell script or a YAML file. Raises ValueError if it does not train with verl."""
    return import_settings(read_source(path))


def import_settings(source: VerlSource) -> ImportDraft:
    """Returns the spec of settings."""
    table = verl_table()
    for name in [name for name in source.added if not table.is_known(name)]:
        setting = source.settings.pop(name)
        source.notes.append(f"{setting.location}: +{setting}: added to verl's settings; has no counterpart")
    draft = ImportDraft(
        source=source.name,
        command="rlrun import verl",
        table=table,
        settings=source.settings,
        notes=source.notes,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft
