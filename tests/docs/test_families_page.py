"""The tables of docs/families.md are those of the code, and every layout in them has a test.

Write them again with `.venv/bin/python -m tests.docs.test_families_page`.
"""

import re
from collections.abc import Mapping

import pytest

from rlrun.converters.families.families import check_family
from rlrun.models.families.by_transformers import TEXT_FAMILIES, TRANSFORMERS
from rlrun.models.families.table import FAMILIES, NATIVE, TABLES, similar_families
from rlrun.models.family import Support
from tests.docs.pages import ROOT
from tests.runner.trainer.layouts import CASES
from tests.runner.trainer.trainer_cases import MODELS
from tests.tiny_models import FOREIGN

PAGE = ROOT / "docs" / "families.md"
SECTION = re.compile(r"(<!-- (native|transformers|converted): begin -->\n).*?(<!-- \2: end -->)", re.S)
DEGREES = ("tensor", "context", "pipeline", "expert")


def table(families: Mapping[str, Support]) -> str:
    columns = ["`model_type`", "models", "fsdp, replicate", *DEGREES]
    if families is NATIVE:
        columns += ["LoRA", "precision", "shared prefixes", "native engine", "SGLang in tests", "images"]
    lines = [row(columns), row(["---"] * len(columns))]
    for name, family in families.items():
        cells = [f"`{name}`", family.models, "yes"]
        cells += [mark(degree in family.layouts) for degree in DEGREES]
        if families is NATIVE:
            cells += [mark(family.adapters), mark(family.precision), mark(family.prefixes)]
            engine = "yes" if family.native_engine else "by transformers' layers"
            cells += [engine, mark(family.sglang), mark(family.images)]
        lines.append(row(cells))
    return "\n".join(lines) + "\n"


def converted() -> str:
    """Returns the table of the families that only `rlrun convert` knows."""
    lines = [row(["`model_type`", "converted by torchtitan's package"]), row(["---"] * 2)]
    known = {name: each.torchtitan_package for name, each in FAMILIES.items() if name not in NATIVE}
    lines += [row([f"`{name}`", f"`{package}`"]) for name, package in known.items() if package]
    return "\n".join(lines) + "\n"


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def mark(is_offered: bool) -> str:
    return "yes" if is_offered else "–"


def page() -> str:
    tables = {"native": table(NATIVE), "transformers": table(TRANSFORMERS), "converted": converted()}
    return SECTION.sub(lambda found: found[1] + tables[found[2]] + found[3], PAGE.read_text("utf-8"))


def test_the_tables_of_the_page() -> None:
    assert page() == PAGE.read_text("utf-8")


def test_the_page_has_every_family_that_convert_lists() -> None:
    with pytest.raises(ValueError, match="supported are") as refused:
        check_family({"model_type": "unknown"})
    listed = str(refused.value).partition("supported are ")[2].split(", ")
    assert [name for name in listed if f"| `{name}` |" not in PAGE.read_text("utf-8")] == []


@pytest.mark.parametrize("implementation", TABLES)
def test_every_layout_that_is_offered_is_compared_with_transformers(implementation: str) -> None:
    tested = set()
    for case in CASES:
        family = str(MODELS[case.model]["family"])
        if (family in FOREIGN) == (implementation == "transformers"):
            tested |= {(family, degree) for degree in DEGREES if case.parallel.get(degree, 1) > 1}
    multimodal = {name: family.text.model_type for name, family in FAMILIES.items() if family.text}
    offered = {
        ({**multimodal, **TEXT_FAMILIES}.get(name, name), degree)
        for name, family in TABLES[implementation].items()
        for degree in family.layouts
    }
    assert offered <= tested


def test_the_names_that_are_near_to_a_wrong_one() -> None:
    assert similar_families("mistal")[0] == "mistral"
    assert similar_families("zamba9") == []


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
