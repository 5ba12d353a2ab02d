from typing import Any

import pytest

from rlrun.specs.derived.default_engine import Circumstances, choose_engine

HERE = "/opt/bin/python"


@pytest.mark.parametrize(
    ("section", "given", "kind", "reason"),
    [
        ({}, Circumstances(False, False, HERE, True), "native", "the cluster has no GPUs"),
        ({"tensor": 2}, Circumstances(False, False, HERE, True), "native", "the cluster has no GPUs"),
        ({}, Circumstances(True, False, HERE, True), "sglang", f"SGLang is installed for {HERE}"),
        ({}, Circumstances(True, False, HERE, False), "native", f"SGLang is not installed for {HERE}"),
        ({}, Circumstances(True, False, HERE, None), "sglang", "assumed to be installed"),
        ({"python": "/a"}, Circumstances(True, False, HERE, False), "sglang", "python is set"),
        ({"sglang": {"a": 1}}, Circumstances(True, True, HERE, False), "sglang", "sglang is set"),
        ({"tensor": 1, "sglang": {}}, Circumstances(True, False, HERE, False), "native", "not installed"),
        ({"count": 2}, Circumstances(True, False, HERE, False), "native", "not installed"),
        ({}, Circumstances(True, True, HERE, True), "native", "does not sample reproducibly"),
        ({}, Circumstances(True, True, HERE, None), "native", "does not sample reproducibly"),
    ],
)
def test_the_engine_of_a_section_without_a_type(
    section: dict[str, Any], given: Circumstances, kind: str, reason: str
) -> None:
    choice = choose_engine(section, given)
    assert choice.type == kind
    assert reason in choice.reason
    assert (choice.cure is not None) == (kind == "native" and given.gpus), (
        "native engines on GPUs are a warning"
    )


def test_only_what_is_installed_here_makes_a_choice_depend_on_the_host() -> None:
    choices = [choose_engine({}, Circumstances(True, False, HERE, has)) for has in (True, False, None)]
    assert [choice.depends_on_host for choice in choices] == [True, True, False]
    assert not choose_engine({"tensor": 2}, Circumstances(True, False, HERE, True)).depends_on_host
