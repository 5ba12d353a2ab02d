"""The end of a run: its learning curve, as text and as a picture, and a page with samples."""

import base64
import html
import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.packed_lines import UnreadableFile, read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.text_plot import LABEL, plot
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

logger = logging.getLogger(__name__)

SMALLEST_PLOT = 20
"""Columns of the curve's area in the narrowest terminal."""
_SHOWN_SAMPLES = 12
_SHOWN = {"id", "prompt", "response", "reward", "tokens", "status"}
"""What is shown of a sample."""

Series = dict[str, list[tuple[int, float]]]


def curves(folder: RunFolder) -> Series:
    """What a run is judged by: held-out and training reward, or the loss where there is no reward."""
    lines = read_metrics(folder.metrics)
    names = [name for name in dict.fromkeys(name for line in lines for name in line) if _is_judged(name)]
    return {
        name: [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        for name in names or ["train/loss"]
    }


def write_report(folder: RunFolder, title: str, width: int) -> str:
    """Write curve.png and report.html, older ones set aside; the curve as text of at most this width.

    A run of one step has no curve to show: its text is empty.
    """
    series = {name: points for name, points in curves(folder).items() if points}
    if not series:
        return ""
    folder.set_aside(folder.curve)
    folder.set_aside(folder.report)
    draw(series, title, folder.curve)
    folder.report.write_text(_page(folder, series, title), encoding="utf-8")
    if len({step for points in series.values() for step, _ in points}) < 2:
        return ""
    return plot(series, max(width - LABEL - 2, SMALLEST_PLOT))


def draw(series: Series, title: str, path: Path) -> None:
    """A PNG of the curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for name, points in series.items():
        held_out = name.startswith("eval/")
        style = (
            {"linewidth": 2, "marker": "o", "markersize": 4} if held_out else {"linewidth": 1, "alpha": 0.7}
        )
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(title=title, xlabel="step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _is_judged(name: str) -> bool:
    return name == "rollout/reward/mean" or (name.startswith("eval/") and name.endswith("/reward"))


def _page(folder: RunFolder, series: Series, title: str) -> str:
    picture = base64.b64encode(folder.curve.read_bytes()).decode()
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{points[0][1]:.4g}</td><td>{max(v for _, v in points):.4g}</td>"
        f"<td>{points[-1][1]:.4g}</td></tr>"
        for name, points in series.items()
    )
    samples = "".join(_sample(sample) for sample in _last_samples(folder))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
td, th {{ padding: .2rem 1rem .2rem 0; text-align: left; }} img {{ max-width: 100%; }}
pre {{ background: #f4f4f4; padding: .6rem; white-space: pre-wrap; }}
</style></head><body><h1>{html.escape(title)}</h1>
<img alt="learning curve" src="data:image/png;base64,{picture}">
<table><tr><th>metric</th><th>first</th><th>best</th><th>last</th></tr>{rows}</table>
<h2>Samples of the last step</h2>{samples}</body></html>
"""


def _last_samples(folder: RunFolder) -> list[dict[str, Any]]:
    """The first samples of the last step; none, with a warning, where its file is broken."""
    files = [path for path in list_step_paths(folder.rollouts, ROLLOUTS).values() if path.is_file()]
    if not files:
        return []
    try:
        samples = list(islice(read_records(files[-1]), _SHOWN_SAMPLES))
    except UnreadableFile as error:
        logger.warning("the report shows no samples: %s", error)
        return []
    return [sample for sample in samples if sample.keys() >= _SHOWN]


def _sample(sample: dict[str, Any]) -> str:
    prompt = sample["prompt"] if isinstance(sample["prompt"], str) else json.dumps(sample["prompt"], indent=1)
    head = f"{sample['id']}: reward {sample['reward']}, {sample['tokens']} tokens, {sample['status']}"
    texts = "".join(f"<pre>{html.escape(text)}</pre>" for text in (prompt, sample["response"]))
    return f"<h3>{html.escape(head)}</h3>{texts}"
