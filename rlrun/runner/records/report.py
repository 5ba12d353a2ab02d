"""Writes the report at the end of a run: the learning curve, as text and as a picture, and some samples."""

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
from rlrun.runner.records.text_plot import LABEL_WIDTH, plot_text
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

logger = logging.getLogger(__name__)

SMALLEST_PLOT = 20
"""Columns of the plot in the narrowest terminal."""
_SHOWN_SAMPLES = 12
_SHOWN = {"id", "prompt", "response", "reward", "tokens", "status"}
"""The fields of a sample that the report shows."""

Series = dict[str, list[tuple[int, float]]]


def read_curves(folder: RunFolder) -> Series:
    """Returns the curves of held-out and training reward, or of the loss if there are no rewards."""
    lines = read_metrics(folder.metrics)
    names = [name for name in dict.fromkeys(name for line in lines for name in line) if _is_reward(name)]
    return {
        name: [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        for name in names or ["train/loss"]
    }


def write_report(folder: RunFolder, title: str, width: int) -> str:
    """Writes curve.png and report.html, and returns the curve as text of at most `width` columns.

    Older files are set aside first. The text of a run with a single step is empty.
    """
    series = {name: points for name, points in read_curves(folder).items() if points}
    if not series:
        return ""
    folder.set_aside(folder.curve)
    folder.set_aside(folder.report)
    draw_curves(series, title, folder.curve)
    folder.report.write_text(_page(folder, series, title), encoding="utf-8")
    if len({step for points in series.values() for step, _ in points}) < 2:
        return ""
    return plot_text(series, max(width - LABEL_WIDTH - 2, SMALLEST_PLOT))


def draw_curves(series: Series, title: str, path: Path) -> None:
    """Writes the curves as a PNG."""
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


def _is_reward(name: str) -> bool:
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
    """Returns the first samples of the last step; none, with a warning, if the file is broken."""
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
