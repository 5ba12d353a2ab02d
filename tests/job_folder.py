"""A folder with a job that tests load and check, and do not run."""

from pathlib import Path

from tests.tiny_models import make_tiny_model

SPEC = """
name = "job"
[model]
path = "model"
[data]
path = "rows.jsonl"
[[rewards]]
type = "math"
[rollout]
max_prompt_tokens = 48
max_response_tokens = 64
[trainer]
steps = 4
"""


def make_job_folder(folder: Path, sections: str = "") -> Path:
    """Writes a tiny model, rows and a spec that ends with `sections`; returns the spec's file."""
    make_tiny_model(folder / "model")
    (folder / "rows.jsonl").write_text('{"prompt": "1 + 1?", "label": 2}\n' * 8)
    spec = folder / "job.toml"
    spec.write_text(SPEC + sections)
    return spec
