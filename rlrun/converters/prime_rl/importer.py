"""Converts prime-rl's TOML files to a spec: `rlrun import prime-rl rl.toml overlay.toml`.

    files -> reading.py (settings) -> settings.toml and the rules below -> ImportDraft

prime-rl counts samples, and generates while it trains.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.prime_rl import source_rules as sources
from rlrun.converters.prime_rl import training_rules as training
from rlrun.converters.prime_rl.reading import PrimeSource, read_source

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": training.run_name,
    "model": training.model,
    "steps": training.steps,
    "batches": training.batches,
    "lengths": training.lengths,
    "asynchrony": training.asynchrony,
    "algorithm": training.algorithm,
    "loss": training.loss,
    "optimizer": training.optimizer,
    "schedule": training.schedule,
    "memory": training.memory,
    "precision": training.precision,
    "lora": training.lora,
    "deployment": training.deployment,
    "weights": training.weights,
    "sources": sources.sources,
    "evaluation": sources.evaluation,
    "checkpoints": sources.checkpoints,
    "trackers": sources.trackers,
}
"""The rules of settings.toml, in the order in which they run."""


@cache
def prime_table() -> SettingTable:
    """Returns prime-rl's settings."""
    return read_table(Path(__file__).parent, "prime-rl")


def import_files(paths: Sequence[Path]) -> ImportDraft:
    """Returns the spec of TOML files, or of a shell script. Raises ValueError for unknown settings."""
    return import_settings(read_source(paths))


def import_settings(source: PrimeSource) -> ImportDraft:
    """Returns the spec of settings."""
    draft = ImportDraft(
        source=source.name,
        command="rlrun import prime-rl",
        table=prime_table(),
        settings=source.settings,
        notes=source.notes,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft
