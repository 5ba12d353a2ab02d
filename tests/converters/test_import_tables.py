"""The tables of the importers agree with docs/coming-from.md, and with each other."""

import re

import pytest

from rlrun.converters.imports.setting_table import SettingTable
from rlrun.converters.prime_rl.importer import prime_table
from rlrun.converters.trl.importer import trl_table
from rlrun.converters.verl.importer import verl_table
from rlrun.specs.problems.other_trainers import rows

TABLES = {"TRL": trl_table(), "verl": verl_table(), "prime-rl": prime_table()}
"""By the titles of docs/coming-from.md."""
NO_SETTINGS = {
    "TRL": {"trl", "accelerate", "SFTTrainer", "DPOTrainer", "KTOTrainer", "GKDTrainer"},
    "verl": {"data_source"},
    "prime-rl": {"env"},
}
"""Names in the tables that are not settings."""
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:=[^`]*)?`")


def settings(trainer: str) -> list[tuple[str, str]]:
    """Returns each setting of the page, and what rlrun has for it."""
    return [
        (name, row.ours)
        for row in rows()[trainer]
        for name in NAME.findall(row.theirs)
        if name.partition(".")[0].partition(" ")[0] not in NO_SETTINGS[trainer]
    ]


def full_names(table: SettingTable, name: str) -> list[str]:
    """Returns the trainer's settings whose path ends like a name of the page, or that are in such a table."""
    return [known for known in table.names() if f".{known}.".find(f".{name}.") >= 0]


@pytest.mark.parametrize(
    ("trainer", "name", "ours"),
    [(trainer, name, ours) for trainer in TABLES for name, ours in settings(trainer)],
)
def test_a_setting_of_the_page_is_one_that_the_importer_translates(
    trainer: str, name: str, ours: str
) -> None:
    table = TABLES[trainer]
    found = full_names(table, name)
    assert found, f"{trainer} has no setting {name}"
    for full in found:
        row = table.row(full)
        if row.key is not None and full.endswith(name):
            assert row.key in ours or row.key.rpartition(".")[0] in ours, (full, ours)


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_patterns_and_names_of_notes_match_settings(table: SettingTable) -> None:
    for name, row in table.rows.items():
        if "*" in name:
            assert any(table.row(known) is row for known in [*table.defaults, name.replace("*", "x")]), name
