"""Converts a training script of TRL's GRPOTrainer to a spec: `rlrun import trl train.py`.

    file -> reading.py (settings) -> settings.toml and the rules below -> ImportDraft

TRL counts samples and micro-steps, rlrun prompts and optimizer steps: batch_rules.py converts.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.settings import add_setting
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.trl import batch_rules as batches
from rlrun.converters.trl import data_rules as data
from rlrun.converters.trl import objective_rules as objective
from rlrun.converters.trl import trainer_rules as trainer
from rlrun.converters.trl.reading import TrlSource, read_source

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": trainer.run_name,
    "model": trainer.model,
    "batches": batches.batches,
    "steps": batches.steps,
    "devices": batches.devices,
    "lengths": batches.lengths,
    "sampling": batches.sampling,
    "loss": objective.loss,
    "clipping": objective.clipping,
    "entropy": objective.entropy,
    "kl": objective.kl,
    "reference": objective.reference,
    "correction": objective.correction,
    "optimizer": trainer.optimizer,
    "schedule": trainer.schedule,
    "precision": trainer.precision,
    "lora": trainer.lora,
    "data": data.data,
    "rewards": data.rewards,
    "evaluation": data.evaluation,
    "checkpoints": trainer.checkpoints,
    "trackers": trainer.trackers,
}
"""The rules of settings.toml, in the order in which they run."""


@cache
def trl_table() -> SettingTable:
    """Returns TRL's settings."""
    return read_table(Path(__file__).parent, "TRL")


def import_file(path: Path, gpus: int | None = None) -> ImportDraft:
    """Returns the spec of a Python, YAML or shell file. Raises ValueError if it has no settings of GRPO."""
    return import_settings(read_source(path), gpus)


def _switch_off(source: TrlSource) -> None:
    """Renames flags such as `--no_bf16`, by which a command line switches a setting off."""
    for name in [name for name in source.settings if name.startswith("no_")]:
        plain = name.removeprefix("no_")
        if isinstance(trl_table().default(plain), bool) and not trl_table().is_known(name):
            add_setting(source.settings, plain, False, source.settings.pop(name).location)


def import_settings(source: TrlSource, gpus: int | None = None) -> ImportDraft:
    """Returns the spec of settings. `gpus`: the number of processes, if the file does not say it."""
    _switch_off(source)
    draft = ImportDraft(
        source=source.name,
        command="rlrun import trl",
        table=trl_table(),
        settings=source.settings,
        notes=source.notes,
        unread=source.unread,
        gpus=gpus or source.gpus,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft
