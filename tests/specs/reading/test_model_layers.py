"""Whose layers compute a model, where the spec leaves it open."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.specs.reading.model_layers import fill_in_layers


@pytest.mark.parametrize(
    ("config", "model", "expected"),
    [
        pytest.param({"model_type": "mistral"}, {}, "transformers", id="only by transformers"),
        pytest.param({"model_type": "qwen3"}, {}, None, id="by layers of the trainer's own"),
        pytest.param({"model_type": "llama"}, {}, None, id="by both"),
        pytest.param({"model_type": "mistral"}, {"implementation": "torchtitan"}, "torchtitan", id="given"),
        pytest.param({"model_type": "unknown"}, {}, None, id="by neither"),
        pytest.param({"model_type": 3}, {}, None, id="a number as the family"),
        pytest.param([], {}, None, id="not a table"),
        pytest.param(None, {}, None, id="no config.json"),
    ],
)
def test_layers_follow_from_the_family(
    config: Any, model: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    data: dict[str, Any] = {"model": {"path": str(tmp_path), **model}}
    reason = fill_in_layers(data)
    assert data["model"].get("implementation") == expected
    assert (reason is not None) == (expected is not None and not model)


@pytest.mark.parametrize("data", [{}, {"model": []}, {"model": {}}, {"model": {"path": 3}}])
def test_a_spec_without_a_model_stays_as_it_is(data: dict[str, Any]) -> None:
    assert fill_in_layers(data) is None


def test_a_model_of_the_hub_that_is_not_cached_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert fill_in_layers({"model": {"path": "org/not-in-any-cache"}}) is None
