"""Writes the model card of a trained model from its spec and its results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.models.object_store import is_address
from rlrun.runner.records.metrics_file import results_of
from rlrun.specs.sections.job import Spec

CARD = "README.md"


def model_card(spec: Spec, spec_text: str, lines: Sequence[dict[str, Any]], *, adapter: bool) -> str:
    """Returns the card of a run's final model.

    `spec_text` is the spec as written, which refers to secrets by name; `lines` are those of metrics.jsonl.
    `adapter`: the model is a LoRA adapter.
    """
    from huggingface_hub import ModelCardData

    is_elsewhere = Path(spec.model.path).is_absolute() or is_address(spec.model.path)
    base = None if is_elsewhere else spec.model.path  # the hub refuses a base model that it does not have
    data = ModelCardData(
        base_model=base,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["rlrun", "reinforcement-learning", spec.algorithm.type],
    )
    steps = int(lines[-1]["step"]) if lines else 0
    start = f"[{base}](https://huggingface.co/{base})" if base else Path(spec.model.path).name
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {spec.name}",
        f"{start}, trained for {steps:,} steps with `{spec.algorithm.type}` by rlrun.",
    ]
    if rows := list(_rows(lines)):
        head = "| metric | first | last | best |\n| --- | --- | --- | --- |"
        parts.append("\n".join(["## Results\n", head, *rows]))
    if spec_text.strip():
        fence = "```" if "```" not in spec_text else "~~~~~~"
        parts.append(f"## Spec\n\n{fence}toml\n{spec_text.strip()}\n{fence}")
    return "\n\n".join(parts) + "\n"


def _rows(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a row for each reward, loss and pass rate."""
    results = results_of(lines)
    rows = []
    for name in (key.removesuffix(".last") for key in results if key.endswith(".last")):
        first = next(line[name] for line in lines if line.get(name) is not None)
        values = (first, results[f"{name}.last"], results[f"{name}.best"])
        rows.append(f"| {name} | " + " | ".join(f"{value:.4g}" for value in values) + " |")
    return rows
